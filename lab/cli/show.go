package cli

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/tcpilot/tcpilot/internal/console"
	"github.com/tcpilot/tcpilot/lab/scenario"
)

func (a *app) show() *cobra.Command {
	var source bool
	cmd := &cobra.Command{
		Use:   "show SCENARIO",
		Short: "Describe a scenario, or show its file",
		Long: `Describe what a scenario does, where it comes from and what is expected of it.
SCENARIO is a name of 'tcpilot lab list' or a file, which is checked. With --source,
print the file itself, as a start for one of your own.`,
		Example: `  tcpilot lab show loss
  tcpilot lab show loss --source > mine.yaml`,
		Args:              console.Args(1, 1, "SCENARIO"),
		ValidArgsFunction: completeScenarios,
		RunE: func(_ *cobra.Command, argv []string) error {
			s, err := scenario.Load(argv[0], scenario.Options{})
			if err != nil {
				return err
			}
			switch {
			case source:
				text, err := sourceOf(argv[0])
				if err != nil {
					return err
				}
				return a.Print(text)
			case a.JSON:
				return a.PrintJSON(snakeCase(reflect.ValueOf(s)))
			}
			var b bytes.Buffer
			s.Describe(&b)
			return a.Print(b.Bytes())
		},
	}
	cmd.Flags().BoolVar(&source, "source", false, "write the scenario's file")
	a.JSONFlag(cmd, "write a JSON document, without fields that are zero")
	console.Exclusive(cmd, "source", "json")
	return cmd
}

// sourceOf returns the file of a scenario that could be loaded: if its name is not that of
// a shipped one, it is a file's.
func sourceOf(nameOrPath string) ([]byte, error) {
	if text, err := scenario.Source(nameOrPath); err == nil {
		return text, nil
	}
	return os.ReadFile(nameOrPath)
}

// snakeCase converts v for JSON, with the names of fields in snake case and without fields
// that are zero. Durations are in nanoseconds, and their names end in _ns.
func snakeCase(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		return snakeCase(v.Elem())
	case reflect.Struct:
		fields := map[string]any{}
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if !field.IsExported() || v.Field(i).IsZero() {
				continue
			}
			name := snakeName(field.Name)
			if field.Type == reflect.TypeFor[time.Duration]() {
				name += "_ns"
			}
			fields[name] = snakeCase(v.Field(i))
		}
		return fields
	case reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = snakeCase(v.Index(i))
		}
		return list
	case reflect.Map: // its keys are names from the scenario, kept as they are
		entries := map[string]any{}
		for i := v.MapRange(); i.Next(); {
			entries[i.Key().String()] = snakeCase(i.Value())
		}
		return entries
	}
	return v.Interface()
}

// snakeName is the name of a Go field in snake case: CPUBound is cpu_bound. IPv6, which
// would become two words, is ipv6.
func snakeName(name string) string {
	var b strings.Builder
	letters := []rune(strings.ReplaceAll(name, "IPv6", "Ipv6"))
	for i, r := range letters {
		upper := func(i int) bool { return unicode.IsUpper(letters[i]) }
		if i > 0 && upper(i) && (!upper(i-1) || i+1 < len(letters) && !upper(i+1)) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

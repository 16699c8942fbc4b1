package console

import (
	"fmt"
	"io"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is the release that the linker set; if it set none, the module's version.
func Version(release string) string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}

// VersionCommand returns the command that shows the version of its root, as --version does.
func VersionCommand(o *Output, version string) *cobra.Command {
	type document struct {
		Version string `json:"version"`
	}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program",
		Args:  Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return EmitValue(o, document{version}, func(w io.Writer, v document) {
				fmt.Fprintf(w, "%s version %s\n", cmd.Root().DisplayName(), v.Version)
			})
		},
	}
	o.JSONFlag(cmd, "write JSON")
	return cmd
}

// Command gen writes the configuration reference, or the JSON Schema, to the files that
// it is given: the schema to those that end in .json.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/tcpilot/tcpilot/internal/config"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: gen FILE...")
		os.Exit(2)
	}
	for _, file := range os.Args[1:] {
		text := []byte(config.Reference())
		if filepath.Ext(file) == ".json" {
			text = config.Schema()
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

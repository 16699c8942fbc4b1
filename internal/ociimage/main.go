// Command ociimage writes a container image that has nothing but the given files: an OCI image layout in a
// tar archive, which container runtimes import without a registry. The same files make the same bytes.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

func main() {
	var i image
	flag.StringVar(&i.name, "name", "localhost/tcpilot:latest", "`NAME` under which the image is imported")
	flag.StringVar(&i.version, "version", "", "version of its contents")
	flag.StringVar(&i.arch, "arch", runtime.GOARCH, "architecture of the programs, as GOARCH")
	out := flag.String("o", "", "archive to write; the files follow, the first is the program that the image runs")
	flag.Parse()
	if err := run(i, *out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "ociimage:", err)
		os.Exit(1)
	}
}

func run(i image, out string, files []string) error {
	if out == "" || len(files) == 0 {
		return fmt.Errorf("usage: ociimage -o ARCHIVE [-name NAME] [-version VERSION] [-arch ARCH] PROGRAM [FILE ...]")
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		i.files = append(i.files, file{filepath.Base(path), data, info.Mode()&0o111 != 0})
	}
	archive, err := i.archive()
	if err != nil {
		return err
	}
	if err := os.WriteFile(out+".new", archive, 0o644); err != nil {
		return err
	}
	return os.Rename(out+".new", out)
}

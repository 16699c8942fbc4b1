package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/datapath"
)

// Detach without a configuration file must not look in the directories of the default configuration if the
// command names the socket of another daemon.
func TestExamined(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("run_dir: /run/other\nbpffs: /run/other/bpf\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := loadConfig("") // of this host, if it has one
	if err != nil {
		t.Fatal(err)
	}
	want := []string{cfg.RunDir, cfg.StateDir, datapath.PinDir(cfg.BPFFS)}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Dir(cfg.RunDir), link); err != nil {
		t.Fatal(err)
	}
	for _, socket := range []string{"", cfg.Socket.Path, "/" + cfg.Socket.Path, filepath.Join(link, filepath.Base(cfg.RunDir), "tcpilot.sock")} {
		if dirs, err := Examined("", socket); err != nil || !slices.Equal(dirs, want) {
			t.Errorf("socket %q: %q, %v", socket, dirs, err)
		}
	}
	var refused *api.Error
	if _, err := Examined("", "/run/other/tcpilot.sock"); !errors.As(err, &refused) || !strings.Contains(refused.Hint, "--config FILE") {
		t.Errorf("socket of another daemon: %v", err)
	}
	if dirs, err := Examined(file, "/run/third/tcpilot.sock"); err != nil || dirs[0] != "/run/other" {
		t.Errorf("with a file: %q, %v", dirs, err)
	}
}

package e2e

import (
	"testing"
	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/internal/lab/load"
)
func TestMain(m *testing.M) { load.RunIfAgent(); testenv.Main(m) }

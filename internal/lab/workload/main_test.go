package workload

import (
	"testing"

	"github.com/tcpilot/tcpilot/internal/lab/load"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) {
	load.RunIfAgent()
	testenv.Main(m)
}

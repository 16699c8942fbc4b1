package workload

import (
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
	"github.com/tcpilot/tcpilot/lab/load"
)

func TestMain(m *testing.M) {
	load.RunIfAgent()
	testenv.Main(m)
}

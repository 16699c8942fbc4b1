package load

import (
	"testing"

	"github.com/tcpilot/tcpilot/internal/testenv"
)

func TestMain(m *testing.M) {
	RunIfAgent()
	testenv.Main(m)
}

package daemon

import (
	"github.com/tcpilot/tcpilot/internal/datapath"
	"github.com/tcpilot/tcpilot/internal/host"
)

// undoListeners takes back the flag that listeners have for the peer option.
func (d *Daemon) undoListeners() error {
	if !d.dp.AsksListeners() {
		return nil
	}
	list, err := host.NewNetNSList()
	if err != nil {
		return err
	}
	defer list.Close()
	if err := d.dp.SetSettings(datapath.Settings{}); err != nil {
		return err
	}
	_, err = d.inAll(list, d.dp.SampleLive)
	return err
}

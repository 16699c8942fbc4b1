package cc

// embedded lists the controls of ours. By name only: a background class wants
// ledbat, prague is an experiment.
func embedded() []object {
	all := []object{
		{name: "tcpilot_bbr3", source: "draft-ietf-ccwg-bbr", elf: _Bbr3Bytes},
		{name: "tcpilot_cubic", source: "RFC 9438, RFC 9406", elf: _CubicBytes},
		{name: "tcpilot_dctcp", source: "RFC 8257", needsECN: true, elf: _DctcpBytes},
		{name: "tcpilot_ledbat", source: "RFC 6817, draft-irtf-iccrg-ledbat-plus-plus-01", byName: true, elf: _LedbatBytes},
		{name: "tcpilot_prague", source: "RFC 9331, draft-briscoe-iccrg-prague-congestion-control-04",
			needsECN: true, byName: true, elf: _PragueBytes},
	}
	for i := range all {
		all[i].version = version(all[i].elf)
	}
	return all
}

// Names lists the controls of ours, in alphabetical order.
func Names() []string {
	var out []string
	for _, o := range embedded() {
		out = append(out, o.name)
	}
	return out
}

// find is the one of objects that is called name, or nil.
func find(objects []object, name string) *object {
	for i := range objects {
		if objects[i].name == name {
			return &objects[i]
		}
	}
	return nil
}

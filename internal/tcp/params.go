package tcp

// Params are the values to set on a connection. A field that is not set is left
// to the kernel; 0 never stands for "default". Params is comparable.
type Params struct {
	set   uint64
	value [NumFields]uint64
}

// Set gives f the value v, in the unit of Fields[f].
func (p *Params) Set(f Field, v uint64) {
	p.set |= 1 << f
	p.value[f] = v
}

// Unset leaves f to the kernel.
func (p *Params) Unset(f Field) {
	p.set &^= 1 << f
	p.value[f] = 0
}

// Get returns f's value; ok is false when it is left to the kernel.
func (p *Params) Get(f Field) (v uint64, ok bool) {
	return p.value[f], p.set&(1<<f) != 0
}

// Mask has the bit 1<<f set for every field f that is set.
func (p *Params) Mask() uint64 { return p.set }

// Without returns p without the fields f whose bit 1<<f is in mask.
func (p Params) Without(mask uint64) Params {
	for f := Field(0); mask>>f != 0; f++ {
		if mask&(1<<f) != 0 {
			p.Unset(f)
		}
	}
	return p
}

// Fields returns the fields that are set, in order.
func (p *Params) Fields() []Field {
	var fs []Field
	for f := range NumFields {
		if p.set&(1<<f) != 0 {
			fs = append(fs, f)
		}
	}
	return fs
}

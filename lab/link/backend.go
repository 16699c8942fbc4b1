package link

import (
	"errors"
	"fmt"
)

// supports returns an error that names what this backend cannot do of the Spec on
// any kernel.
func (b Backend) supports(s Spec) error {
	switch b {
	case Auto, Emulator:
		return nil
	case Netem:
		return netemSupports(s)
	}
	return fmt.Errorf("backend %q is not auto, netem or emulator", b)
}

func netemSupports(s Spec) error {
	switch {
	case s.Queue.Bytes > 0 && s.Queue.Packets > 0:
		return errors.New("netem cannot limit a queue by bytes and by packets at once")
	case s.Reorder > 0 && s.Rate > 0:
		return errors.New("netem sends reordered packets without applying the rate")
	}
	return nil
}

// For returns the backend to use for all these Specs on this kernel. Auto is Netem
// if the kernel has it and it can do them all, else Emulator.
func (b Backend) For(specs ...Spec) (Backend, error) {
	if b == Auto {
		if _, err := Netem.For(specs...); err != nil {
			return Emulator, nil
		}
		return Netem, nil
	}
	for _, s := range append(specs, Spec{}) {
		if err := b.supports(s); err != nil {
			return b, err
		}
	}
	if b == Netem {
		return b, hasNetem()
	}
	return b, nil
}

package podlink

import "testing"

// maxVerified is the most instructions that the verifier may process for one program, as for the
// other objects.
const maxVerified = 250_000

func TestRootVerifier(t *testing.T) {
	needRoot(t)
	l := Links{programs: named()}
	if err := l.load(""); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, p := range l.programs.all() {
		info, err := p.prog.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, ok := info.VerifiedInstructions()
		t.Logf("%s: %d instructions verified", p.name, n)
		if !ok || n > maxVerified {
			t.Errorf("%s: %d instructions, at most %d", p.name, n, maxVerified)
		}
	}
}

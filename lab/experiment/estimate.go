package experiment

import (
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/lab/subject"
)

// Estimate is about how long Run takes. Cases that will be refused are included, because
// that is not known before they run; subjects that are not installed are not.
func (o Options) Estimate() (time.Duration, error) { return o.sum(o.estimate) }

// EstimateCalibration is about how long Calibrate takes.
func (o Options) EstimateCalibration() (time.Duration, error) {
	return o.sum(func(j job) time.Duration {
		j.Subjects = nil
		return j.Estimate()
	})
}

func (o Options) sum(estimate func(job) time.Duration) (all time.Duration, err error) {
	todo, err := o.cases()
	for _, j := range todo {
		all += estimate(j)
	}
	return all, err
}

// estimate is about how long a case takes.
func (o Options) estimate(j job) time.Duration {
	j.Subjects = slices.DeleteFunc(slices.Clone(j.Subjects), func(s subject.Spec) bool {
		return !o.chooses(j, s) || s.Kind == subject.Bpftune && !installed()
	})
	return j.Estimate()
}

// chooses reports whether a subject is chosen; the baseline always is.
func (o Options) chooses(j job, s subject.Spec) bool {
	return len(o.Subjects) == 0 || slices.Contains(o.Subjects, s.Name) || s.Name == j.Baseline
}

// installed reports whether bpftune is installed; subject.New finds out whether it runs here.
func installed() bool {
	_, err := subject.FindBpftune()
	return err == nil
}

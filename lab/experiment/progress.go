package experiment

import "time"

// Progress says how far a run has come.
type Progress struct {
	Case    string        // title of scenario and case
	Step    string        // the current step: "calibrate", "cubic, round 3 of 5"
	Done    float64       // share of the whole run, 0 to 1
	Remains time.Duration // estimated
}

// pace estimates the remaining time: from the durations in the scenarios, scaled by the ratio
// of the real to the estimated time of the finished part.
type pace struct {
	tell         func(Progress)
	estimate     func(job) time.Duration
	began        time.Time
	total        time.Duration // as estimated
	before       time.Duration // of total: finished cases
	title        string        // of this case
	length       time.Duration // of this case, as estimated
	steps, taken int           // of this case
}

func newPace(jobs []job, o Options) *pace {
	p := &pace{tell: o.Progress, estimate: o.estimate, began: time.Now()}
	for _, j := range jobs {
		p.total += p.estimate(j)
	}
	return p
}

// begin starts a case; the previous one has finished.
func (p *pace) begin(j job) {
	p.before += p.length
	p.title, p.length = j.title(), p.estimate(j)
	p.steps, p.taken = 1, 0
}

// expect sets the number of steps of the case.
func (p *pace) expect(steps int) { p.steps, p.taken = max(steps, 1), 0 }

// step reports the step that begins; advance reports its end.
func (p *pace) step(what string) {
	if p.tell == nil {
		return
	}
	done := p.before + p.length*time.Duration(min(p.taken, p.steps))/time.Duration(p.steps)
	left := p.total - done
	if elapsed := time.Since(p.began); done > 0 {
		left = time.Duration(float64(left) * float64(elapsed) / float64(done))
	}
	p.tell(Progress{
		Case: p.title, Step: what,
		Done:    float64(done) / float64(max(p.total, 1)),
		Remains: max(0, left).Round(time.Second),
	})
}

func (p *pace) advance() { p.taken++ }

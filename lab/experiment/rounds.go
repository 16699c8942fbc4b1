package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/lab/calibrate"
	"github.com/tcpilot/tcpilot/lab/report"
	"github.com/tcpilot/tcpilot/lab/subject"
)

// caseRun runs the rounds of one case: the subjects in turn.
type caseRun struct {
	*network
	job   job
	out   *report.Writer
	pace  *pace
	order int // of the next round
}

// tries is the maximum number of times that a round is made if checks of the host or links
// fail.
const tries = 3

// run first warms up the subjects that learn and keep what they learned. Then it makes the
// rounds that count in rotating order: A B C, B C A, C A B, so that no subject is always
// the first.
func (r *caseRun) run(ctx context.Context, list subjectList) error {
	r.pace.expect(r.steps(list))
	failures := map[subject.Subject]error{} // a subject that failed gets no more rounds
	runUnlessFailed := func(e subject.Subject, n, warmup int) error {
		if failures[e] != nil {
			return nil
		}
		err := r.turn(ctx, e, n, warmup)
		if err == nil || ctx.Err() != nil {
			return err
		}
		failures[e] = fmt.Errorf("%s: %w", e.Name(), err)
		return r.failed(e, n, err)
	}
	for _, e := range list {
		if e.Learns() && !e.Forgets() {
			if err := runUnlessFailed(e, 0, r.job.Warmup); err != nil {
				return err
			}
		}
	}
	for n := 1; n <= r.job.Repeat; n++ {
		for i := range list {
			e := list[(i+n-1)%len(list)]
			warmup := 0
			if e.Learns() && e.Forgets() {
				warmup = r.job.Warmup
			}
			if err := runUnlessFailed(e, n, warmup); err != nil {
				return err
			}
		}
	}
	return errors.Join(slices.Collect(maps.Values(failures))...)
}

// failed writes that a subject failed. It gets no more rounds; the other subjects do.
func (r *caseRun) failed(e subject.Subject, n int, err error) error {
	record := r.record(e, n)
	record.Refused = err.Error()
	return r.out.Round(record, nil)
}

// record begins the record of the next round.
func (r *caseRun) record(e subject.Subject, n int) report.Round {
	order := r.order
	r.order++
	return report.Round{
		Scenario: r.job.scenario.Name, Case: r.job.Name,
		Subject: e.Name(), Repeat: n, Order: order, Began: time.Now(),
	}
}

// steps is the number of rounds, with those of the warm-ups.
func (r *caseRun) steps(list subjectList) (n int) {
	for _, e := range list {
		n += r.job.Repeat
		switch {
		case !e.Learns():
		case e.Forgets():
			n += r.job.Warmup * r.job.Repeat
		default:
			n += r.job.Warmup
		}
	}
	return n
}

// turn makes a subject's round number n, or only its warm-up if n is 0. In a fresh case, the
// subject is started again for each try, so that nothing stays of what it learned in an
// earlier try.
func (r *caseRun) turn(ctx context.Context, e subject.Subject, n, warmup int) error {
	starts, each := 1, tries
	if r.job.Fresh {
		starts, each = tries, 1
	}
	for range starts {
		if sane, err := r.runSubject(ctx, e, n, warmup, each); sane || err != nil {
			return err
		}
	}
	return nil // refused: the records say why
}

// runSubject starts a subject, lets it warm up, makes its round number n unless n is 0, and
// stops it. The round is made again if it is not sane, at most tries times in all.
func (r *caseRun) runSubject(ctx context.Context, e subject.Subject, n, warmup, tries int) (sane bool, err error) {
	if err := e.Start(ctx); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, e.Stop(ctx)) }()
	for i := range warmup {
		r.pace.step(fmt.Sprintf("warm up %s, %d of %d", e.Name(), i+1, warmup))
		if _, err := r.round(ctx, e, 0); err != nil {
			return false, err
		}
		r.pace.advance()
	}
	if n == 0 {
		return true, nil
	}
	r.pace.step(fmt.Sprintf("%s, round %d of %d", e.Name(), n, r.job.Repeat))
	defer r.pace.advance()
	for range tries {
		if sane, err := r.round(ctx, e, n); sane || err != nil {
			return sane, err
		}
	}
	return false, nil
}

// round makes the case's traffic once and writes the result.
func (r *caseRun) round(ctx context.Context, e subject.Subject, n int) (sane bool, err error) {
	if err := pause(ctx, r.job.Pause); err != nil {
		return false, err
	}
	before, err := r.count()
	if err != nil {
		return false, err
	}
	record := r.record(e, n)
	watch := calibrate.StartWatch()
	settle := r.follow(ctx)
	result, err := r.fleet.Run(ctx, r.job.Traffic)
	err = errors.Join(err, settle())
	host := watch.Stop()
	if err != nil {
		return false, fmt.Errorf("make traffic for %s: %w", e.Name(), err)
	}
	after, err := r.count()
	if err != nil {
		return false, err
	}
	if record.Host, err = json.Marshal(host); err != nil {
		return false, err
	}
	if n == r.job.Repeat {
		if record.State, err = e.State(ctx); err != nil {
			return false, fmt.Errorf("ask %s for its state: %w", e.Name(), err)
		}
	}
	result.Machine = host.Spent
	record.Measure(&result)
	if err := r.sane(host, after, before); err != nil {
		record.Refused = err.Error()
	}
	return record.Refused == "", r.out.Round(record, &result)
}

// sane returns an error if the round must not count because of the host or the links.
func (r *caseRun) sane(host calibrate.Host, after, before counts) error {
	if r.anyHost {
		return nil
	}
	limits, late := calibrate.DefaultLimits, lateShare
	if r.job.CPUBound {
		limits.Busy, late = 1, lateShareCPUBound
	}
	return errors.Join(host.Sane(limits), after.check(before, late))
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

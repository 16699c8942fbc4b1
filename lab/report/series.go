package report

import (
	"cmp"
	"slices"
	"time"

	"github.com/tcpilot/tcpilot/lab/measure"
)

const (
	// pagePoints limits the points over time of a page. One takes about 15 bytes, so
	// that a page stays below 5 MB in all.
	pagePoints = 220_000
	// Points of one round: with fewer a plot shows nothing, more cannot be distinguished.
	minPoints = 300
	maxPoints = 6000
	// Numbers of steps of time (columns) of a plot. They are halved from maxColumns down to
	// minColumns before connections are left out.
	maxColumns = 320
	minColumns = 40
)

// pointBudget divides the page's points among the rounds that it shows.
func pointBudget(reports []*Report) int {
	rounds := 0
	for _, r := range reports {
		for _, c := range r.Cases {
			rounds += len(c.Subjects)
		}
	}
	return min(max(pagePoints/max(1, rounds), minPoints), maxPoints)
}

// roundPlot is one round over time, reduced to steps.
type roundPlot struct {
	Subject int        `json:"s"`
	Repeat  int        `json:"repeat"`
	Step    num        `json:"step"` // seconds
	Columns int        `json:"n"`
	Shown   int        `json:"shown"` // connections that are drawn
	Of      int        `json:"of"`    // connections of the round
	Lines   []linePlot `json:"lines"`
}

// linePlot is a connection while it used one congestion control.
type linePlot struct {
	ID      int    `json:"id"`
	Group   string `json:"g"`
	CC      string `json:"cc"`
	From    int    `json:"at"`   // step
	Goodput []num  `json:"bw"`   // Mbit/s; null if no point is in the step
	RTT     []num  `json:"rtt"`  // ms
	Cwnd    []num  `json:"cwnd"` // packets
}

func newRoundPlot(subject int, r *RoundData, budget int, ccs map[string]int) *roundPlot {
	byConn := make(map[int][]*measure.Point)
	var end time.Duration
	for i := range r.Points {
		p := &r.Points[i]
		if p.At < 0 {
			continue // not written by a run: the report was edited
		}
		byConn[p.Conn] = append(byConn[p.Conn], p)
		end = max(end, p.At)
	}
	if len(byConn) == 0 {
		return nil
	}
	var connections [][]*measure.Point
	for _, points := range byConn {
		slices.SortStableFunc(points, func(a, b *measure.Point) int { return cmp.Compare(a.At, b.At) })
		connections = append(connections, points)
	}
	// Longest first, then by number, so that the shortest are left out.
	slices.SortFunc(connections, func(a, b []*measure.Point) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a[0].Conn, b[0].Conn))
	})
	columns := maxColumns
	step := stepOf(end, columns, connections)
	for columns > minColumns && size(connections, step) > budget {
		columns /= 2
		step = stepOf(end, columns, connections)
	}
	plot := &roundPlot{Subject: subject, Repeat: r.Repeat, Step: num(step.Seconds()), Columns: int(end/step) + 1, Of: len(connections)}
	names := make(map[int]*measure.Connection)
	for i := range r.Connections {
		names[r.Connections[i].ID] = &r.Connections[i]
	}
	for _, points := range connections {
		budget -= size([][]*measure.Point{points}, step)
		if budget < 0 && plot.Shown > 0 {
			break
		}
		plot.Shown++
		plot.add(points, names[points[0].Conn], step)
	}
	for _, l := range plot.Lines {
		ccColour(ccs, l.CC)
	}
	slices.SortStableFunc(plot.Lines, func(a, b linePlot) int { return cmp.Compare(a.ID, b.ID) })
	return plot
}

// stepOf is the duration of a step: never shorter than the median interval between points.
func stepOf(end time.Duration, columns int, connections [][]*measure.Point) time.Duration {
	step := end/time.Duration(columns) + 1
	var gaps []float64
	for _, points := range connections[:min(len(connections), 20)] {
		for i := 1; i < len(points); i++ {
			gaps = append(gaps, float64(points[i].At-points[i-1].At))
		}
	}
	if len(gaps) > 0 {
		step = max(step, time.Duration(measure.Median(gaps)))
	}
	return step
}

// size is how many points of the page the connections take, one for each step.
func size(connections [][]*measure.Point, step time.Duration) int {
	n := 0
	for _, points := range connections {
		n += int((points[len(points)-1].At-points[0].At)/step) + 1
	}
	return n
}

// add adds a connection: a line for each congestion control in turn.
func (p *roundPlot) add(points []*measure.Point, c *measure.Connection, step time.Duration) {
	for len(points) > 0 {
		n := 1
		for n < len(points) && points[n].CC == points[0].CC {
			n++
		}
		l := linePlot{ID: points[0].Conn, CC: points[0].CC}
		if c != nil {
			l.Group = c.Group
			if l.CC == "" {
				l.CC = c.CC
			}
		}
		// With the next line's first point, so that the lines meet.
		l.fill(points[:min(n+1, len(points))], step)
		p.Lines = append(p.Lines, l)
		points = points[n:]
	}
}

func (l *linePlot) fill(points []*measure.Point, step time.Duration) {
	column := func(p *measure.Point) int { return int(p.At / step) }
	l.From = column(points[0])
	n := column(points[len(points)-1]) - l.From + 1
	goodput, rtt, cwnd := make([]total, n), make([]total, n), make([]total, n)
	for _, p := range points {
		i := column(p) - l.From
		goodput[i] = goodput[i].plus(p.Goodput / 1e6)
		if p.SRTT > 0 {
			rtt[i] = rtt[i].plus(p.SRTT.Seconds() * 1e3)
		}
		if p.Cwnd > 0 {
			cwnd[i] = cwnd[i].plus(float64(p.Cwnd))
		}
	}
	l.Goodput, l.RTT, l.Cwnd = means(goodput), means(rtt), means(cwnd)
}

// means returns NaN for steps without points.
func means(totals []total) []num {
	values := make([]num, len(totals))
	for i, t := range totals {
		values[i] = num(t.mean())
	}
	return values
}

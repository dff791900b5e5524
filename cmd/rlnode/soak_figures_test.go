package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// soakFigures are what a node takes: memory, goroutines, open files, disk, and counters.
type soakFigures [5]float64

// soakFigure says how each figure is shown, and how much it may grow, over all
// nodes: by a part and by slack.
var soakFigure = [len(soakFigures{})]struct {
	name        string
	unit        float64
	part, slack float64
}{
	{"memory in MB", 1e6, 1.1, 12},
	{"goroutines", 1, 1, 15},
	{"files", 1, 1, 15},
	{"disk in MB", 1e6, 1.1, 26}, // a file of counters doubles as it grows, here from 8 to 16 MiB
	{"counters", 1, 1.1, 5000},
}

// soakPhase is what a soak measured between two rolling restarts.
type soakPhase struct {
	early, late []soakFigures // by node, medians: early in the phase, and in its last tenth
	half, p99   []float64     // of single checks, in each sample: the median and p99, in ms
	processor   float64       // processors that nodes and test kept busy
	checks      int
}

// measure lets the load go on until the phase ends. It takes samples, writes
// rules, and logs what it saw.
func (s *soak) measure(number int) (p soakPhase) {
	nodes := s.fleet.nodes
	began, end := time.Now(), s.began.Add(time.Duration(number)*s.phase)
	s.mu.Lock()
	s.calm, p.checks = nil, -s.asked
	s.mu.Unlock()
	p.processor = -s.busy()
	early, late := make([][]soakFigures, len(nodes)), make([][]soakFigures, len(nodes))
	written := began
	for s.failed.Load() < soakFailures && time.Now().Before(end) {
		<-time.After(min(10*time.Second, s.phase/20))
		s.times(&p)
		for i, m := range nodes {
			f := figuresOf(m)
			if time.Until(end) < s.phase/10 {
				late[i] = append(late[i], f)
			} else if len(early[i]) < 6 {
				early[i] = append(early[i], f)
			}
		}
		if time.Since(written) > min(30*time.Second, s.phase/5) {
			written = time.Now()
			s.write(nodes[s.rules%len(nodes)])
		}
	}
	took := time.Since(began).Seconds()
	p.processor = (p.processor + s.busy()) / took
	s.mu.Lock()
	p.checks += s.asked
	s.mu.Unlock()
	text := fmt.Sprintf("%s phase %d: %.0f checks/s, %.2f processors; p50 %.2f ms, p99 %.2f ms, %.2f in the calmest quarter",
		clock(time.Now()), number, float64(p.checks)/took, p.processor, quantile(p.half,
			0.5), quantile(p.p99, 0.5), quantile(p.p99, 0.25))
	for i, m := range nodes {
		a, b := medianOf(early[i]), medianOf(late[i])
		p.early, p.late = append(p.early, a), append(p.late, b)
		text += "\n      " + m.name
		for j, f := range soakFigure {
			text += fmt.Sprintf(", %s %.4g → %.4g", f.name, a[j]/f.unit, b[j]/f.unit)
		}
	}
	s.fleet.t.Log(text)
	return p
}

func clock(at time.Time) string { return at.UTC().Format("15:04:05.000") }

// times adds how long single checks took since the last sample.
func (s *soak) times(p *soakPhase) {
	s.mu.Lock()
	calm := s.calm
	s.calm = nil
	s.mu.Unlock()
	if n := len(calm); n > 0 {
		slices.Sort(calm)
		p.half = append(p.half, calm[n/2].Seconds()*1000)
		p.p99 = append(p.p99, calm[n*99/100].Seconds()*1000)
	}
}

// busy returns the seconds of processor time that the nodes and the test have taken.
func (s *soak) busy() float64 {
	sum := processorTime(s.fleet.t, os.Getpid())
	for _, m := range s.fleet.nodes {
		sum += processorTime(s.fleet.t, m.cmd.Process.Pid)
	}
	return sum
}

// processorTime reads how many seconds a process has kept a processor busy.
func processorTime(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skip("processor time can't be read here")
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	var user, system float64
	if _, err := fmt.Sscan(strings.Join(strings.Fields(rest)[11:13], " "), &user, &system); err != nil {
		t.Fatal(err)
	}
	return (user + system) / 100 // Linux reports hundredths of seconds, whatever its clock does
}

// figuresOf reads what a node takes now.
func figuresOf(m *fleetNode) soakFigures {
	t := m.fleet.t
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.cmd.Process.Pid))
	expect.NoError(t, err)
	disk := int64(0)
	_ = filepath.WalkDir(filepath.Join(m.fleet.dir, m.name), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil { // else it is gone meanwhile
				disk += info.Size()
			}
		}
		return nil
	})
	memory := float64(statusOf(t, m.runningNode, "RssAnon"))
	return soakFigures{memory, m.metric("go_goroutines"), float64(len(open)), float64(disk),
		m.metric("rlnode_counters")}
}

// quantile returns the part-th of the numbers, such as 0.5 for the median.
func quantile(of []float64, part float64) float64 {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[int(float64(len(of))*part)]
}

// medianOf returns the median of each figure.
func medianOf(samples []soakFigures) (median soakFigures) {
	for j := range median {
		var all []float64
		for _, f := range samples {
			all = append(all, f[j])
		}
		median[j] = quantile(all, 0.5)
	}
	return median
}

// flat compares the last third of the phases with the first third. The very
// first phase, in which all begins, is left out. Of what nodes take, it looks
// at all of them together at the ends of phases.
func flat(t *testing.T, phases []soakPhase) {
	t.Helper()
	if len(phases) < 4 {
		return // it has failed before
	}
	phases = phases[1:]
	third := (len(phases) + 2) / 3
	compare := func(what string, part, more float64, get func(soakPhase) float64) {
		var first, last []float64
		for i := range third {
			first, last = append(first, get(phases[i])), append(last, get(phases[len(phases)-1-i]))
		}
		a, b := quantile(first, 0.5), quantile(last, 0.5)
		t.Logf("%s: %.4g in the first third, %.4g in the last", what, a, b)
		if b > a*part+more {
			t.Errorf("%s: it grows from %.4g to %.4g", what, a, b)
		}
	}
	for j, f := range soakFigure {
		compare(f.name, f.part, f.slack, func(p soakPhase) (sum float64) {
			for _, node := range p.late {
				sum += node[j] / f.unit
			}
			return sum
		})
	}
	// Other work on the machine makes checks slower, so the calmest quarter of each
	// phase is compared.
	compare("p99 in ms", 1.5, 1, func(p soakPhase) float64 { return quantile(p.p99, 0.25) })
}

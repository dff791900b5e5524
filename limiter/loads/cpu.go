package loads

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// CPUInterval is how often NodeCPU must be measured.
	CPUInterval = time.Second
	// newLoadWeight is the weight of a new measurement in the smoothed load. A
	// lasting jump shows almost in full after a few seconds, and a single busy
	// second only by half.
	newLoadWeight = 0.5
)

// errNoCPU means that the system does not report how busy its processors are.
var errNoCPU = errors.New("the load of the processors is unknown")

// CPU measures the load of the processors that this process may use. In a
// control group with a limit (cgroup v2), that is the fraction of the limit
// that the group has used. Otherwise it is the fraction of the machine's
// processor time that was not idle.
type CPU struct {
	root    string // of the file system
	last    usage
	load    float64
	hasLast bool // last is a measurement
}

// usage is the processor time used, and available, since some fixed point. For
// the machine, both are in ticks: only their ratio counts.
type usage struct {
	group           string // control group; empty for the machine
	used, available time.Duration
}

// NewCPU returns a meter of this machine.
func NewCPU() *CPU { return &CPU{root: "/"} }

// Load returns the load since the last call, 0…1, smoothed over several calls.
// now is a reading of a monotonic clock. Load reports false on the first call,
// if the control group has changed, and if the load can't be measured.
func (c *CPU) Load(now time.Duration) (load float64, ok bool) {
	u, err := c.read(now)
	if err != nil {
		c.hasLast = false
		return 0, false
	}

	last := c.last
	first := !c.hasLast || c.last.group != u.group
	c.last = u
	c.hasLast = true
	available := u.available - last.available
	if first || available <= 0 {
		return c.load, !first
	}

	part := min(1, max(0, float64(u.used-last.used)/float64(available)))
	c.load += newLoadWeight * (part - c.load)
	return c.load, true
}

func (c *CPU) read(now time.Duration) (usage, error) {
	if group, processors, ok := c.tightestGroup(); ok {
		text, err := os.ReadFile(filepath.Join(group, "cpu.stat"))
		if err != nil {
			return usage{}, err
		}

		for line := range strings.Lines(string(text)) {
			if rest, found := strings.CutPrefix(line, "usage_usec "); found {
				n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
				return usage{group, time.Duration(n) * time.Microsecond, time.Duration(float64(now) * processors)}, err
			}
		}

		return usage{}, errNoCPU
	}

	return c.readMachine()
}

// tightestGroup finds the control group with the lowest limit, in processors,
// among those that contain this process.
func (c *CPU) tightestGroup() (group string, processors float64, ok bool) {
	text, err := os.ReadFile(filepath.Join(c.root, "proc/self/cgroup"))
	if err != nil {
		return "", 0, false
	}

	path := ""
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, "0::"); found {
			path = strings.TrimSpace(rest)
		}
	}

	top := filepath.Join(c.root, "sys/fs/cgroup")
	for dir := filepath.Join(top, filepath.Clean("/"+path)); ; dir = filepath.Dir(dir) {
		n, limits := parseQuota(filepath.Join(dir, "cpu.max"))
		if limits && (!ok || n < processors) {
			group = dir
			processors = n
			ok = true
		}
		if len(dir) <= len(top) {
			return group, processors, ok
		}
	}
}

// parseQuota parses a cpu.max file: how many processors a group may use, such
// as "150000 100000" for one and a half.
func parseQuota(file string) (processors float64, limits bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}

	fields := strings.Fields(string(text))
	if len(fields) != 2 {
		return 0, false
	}

	most, err1 := strconv.ParseFloat(fields[0], 64) // "max" means no limit
	period, err2 := strconv.ParseFloat(fields[1], 64)
	if err1 != nil || err2 != nil || most <= 0 || period <= 0 {
		return 0, false
	}

	return most / period, true
}

// readMachine reads the first line of /proc/stat, in ticks since the start.
func (c *CPU) readMachine() (usage, error) {
	text, err := os.ReadFile(filepath.Join(c.root, "proc/stat"))
	if err != nil {
		return usage{}, err
	}

	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 6 || fields[0] != "cpu" {
		return usage{}, errNoCPU
	}

	var u usage
	// The fields are user, nice, system, idle, iowait, irq, softirq and steal.
	// Those for guests, which follow, are part of user and nice already.
	for i, field := range fields[1:min(len(fields), 9)] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return usage{}, err
		}
		u.available += time.Duration(n)
		if i != 3 && i != 4 {
			u.used += time.Duration(n)
		}
	}

	return u, nil
}

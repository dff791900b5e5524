package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// clockOffset returns rlnode_clock_offset_seconds.
func (m *fleetNode) clockOffset() float64 {
	_, text, _ := m.call("GET", m.admin+"/metrics", "", "")
	found := regexp.MustCompile(`(?m)^rlnode_clock_offset_seconds (\S+)$`).FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	offset, _ := strconv.ParseFloat(found[1], 64)
	return offset
}

// clockOf returns what a node says of another one's clock, in seconds.
func (m *fleetNode) clockOf(name string) float64 {
	var c struct {
		Members []struct {
			Name   string `json:"name"`
			Offset *int64 `json:"clock_offset_ms"`
		} `json:"members"`
	}
	if _, err := m.get("/v1/cluster", &c); err != nil {
		return 0
	}
	for _, one := range c.Members {
		if one.Name == name && one.Offset != nil {
			return float64(*one.Offset) / 1000
		}
	}
	return 0
}

// A node whose clock is ten minutes ahead of the others' says so, and so do the
// others of it; none of the others is blamed. It is over once the clock is
// right again.
func TestAWrongClockIsNoticed(t *testing.T) {
	t.Parallel()
	if testing.Short() && raceDetector {
		t.Skip("several processes under the race detector are slow")
	}
	program := filepath.Join(t.TempDir(), "rlnode-faults")
	expect.NoError(t, process.Build(program, "-tags", "faults"))
	f := newEmptyFleet(t)
	setClock := func(m *fleetNode, by time.Duration) {
		expect.NoError(t, os.WriteFile(filepath.Join(f.dir, m.name+".wall.new"), []byte(fmt.Sprint(int64(by))), 0o600))
		expect.NoError(t, os.Rename(filepath.Join(f.dir, m.name+".wall.new"), filepath.Join(f.dir, m.name+".wall")))
	}
	for i := range 3 {
		m := f.newNode(i+1, 3)
		m.build = program
		m.env = []string{"RLNODE_WALL=" + filepath.Join(f.dir, m.name+".wall")}
		f.nodes = append(f.nodes, m)
		m.startProcess()
	}
	f.awaitWhole()

	wrong := f.nodes[2]
	setClock(wrong, 10*time.Minute)
	near := func(have, want float64) bool { return have > want-0.5 && have < want+0.5 }
	process.Within(t, time.Minute, "n3 says that its clock is wrong", func() bool {
		return near(wrong.clockOffset(), 600) &&
			strings.Contains(wrong.log.String(), "this node's clock is ahead of those of the others")
	})
	process.Within(t, time.Minute, "the others see it", func() bool {
		for _, m := range f.nodes[:2] {
			if !near(m.clockOf("n3"), 600) || !near(m.clockOf(m.name), 0) || !near(m.clockOffset(), 0) {
				return false
			}
		}
		return true
	})
	_, table := f.nodes[0].command("members")
	if !strings.Contains(table, "CLOCK") || !regexp.MustCompile(`n3 .*\+(599|600)\.\d{3}s`).MatchString(table) {
		t.Errorf("members: got\n%s", table)
	}
	for _, m := range f.nodes[:2] {
		if strings.Contains(m.log.String(), "this node's clock is") {
			t.Errorf("%s blames itself:\n%s", m.name, m.log)
		}
	}

	setClock(wrong, 0)
	process.Within(t, time.Minute, "it is over", func() bool {
		return near(wrong.clockOffset(), 0) &&
			strings.Contains(wrong.log.String(), "this node's clock agrees with those of the others again")
	})
}

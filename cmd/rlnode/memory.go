package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// cgroupRoot is where control groups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// memoryLimit returns how many bytes the process may use: the smaller of
// GOMEMLIMIT and the limit of its control group; 0 if there is neither.
func memoryLimit() int64 {
	limit := min(debug.SetMemoryLimit(-1), cgroupLimit("/proc/self/cgroup", cgroupRoot))
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}

// cgroupLimit returns the memory limit of the control groups that list names, a
// file like /proc/self/cgroup; math.MaxInt64 if there is none. In a container
// the paths may be those of the host, but the container's own group is then the
// root.
func cgroupLimit(list, root string) int64 {
	limit := int64(math.MaxInt64)
	text, err := os.ReadFile(list)
	if err != nil {
		return limit // not Linux
	}

	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, ok := strings.Cut(rest, ":")
		base := root
		name := "memory.max"
		if controllers == "memory" { // the first version
			base, name = filepath.Join(root, "memory"), "memory.limit_in_bytes"
		}

		if !ok || controllers != "" && controllers != "memory" {
			continue
		}

		// A group is bound by those above it as well.
		for dir := filepath.Clean("/" + path); ; dir = filepath.Dir(dir) {
			limit = min(limit, readLimit(filepath.Join(base, dir, name)))
			if dir == "/" {
				break
			}
		}
	}

	return limit
}

// unlimited is about what the first version of control groups says for no limit.
const unlimited = 1 << 60

// readLimit reads a limit; math.MaxInt64 if there is none.
func readLimit(name string) int64 {
	text, err := os.ReadFile(name)
	if err != nil {
		return math.MaxInt64
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n <= 0 || n > unlimited { // max
		return math.MaxInt64
	}
	return n
}

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// machine says where and when the bench ran.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory string `json:"memory"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	Commit string `json:"commit"`
	Date   string `json:"date"`
}

// thisMachine describes the machine, and the checkout at root. Unknown values stay "unknown".
func thisMachine(ctx context.Context, root string) machine {
	m := machine{
		CPU: "unknown", Cores: runtime.NumCPU(), Memory: "unknown", Kernel: "unknown",
		Go: runtime.Version(), Commit: "unknown",
		Date: time.Now().UTC().Format("2006-01-02 15:04 UTC"),
	}
	if v := field("/proc/cpuinfo", "model name"); v != "" {
		m.CPU = v
	}

	var kilobytes int64
	if _, err := fmt.Sscanf(field("/proc/meminfo", "MemTotal"), "%d kB", &kilobytes); err == nil {
		m.Memory = fmt.Sprintf("%d GiB", (kilobytes+1<<19)>>20)
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = runtime.GOOS + " " + strings.TrimSpace(string(release))
	}

	git := exec.CommandContext(ctx, "git", "-C", root, "describe", "--always", "--dirty", "--tags")
	if out, err := git.Output(); err == nil {
		m.Commit = strings.TrimSpace(string(out))
	}

	return m
}

// field returns the value of the first line "name: value" of a file, or "".
func field(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if have, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(have) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (m machine) sentence() string {
	return fmt.Sprintf("Measured %s at commit %s on %s, %d cores, %s, %s, %s; client and servers on the same cores.",
		m.Date, m.Commit, m.CPU, m.Cores, m.Memory, m.Kernel, m.Go)
}

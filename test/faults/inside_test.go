//go:build faults

package faults

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	insideEnv = "FAULTS_INSIDE" // set in the process that runs the tests, to the working folder
	seedEnv   = "FAULTS_SEED"
	timeEnv   = "FAULTS_TIME" // duration of the random scenario
)

var (
	workDir string // of this run: has the program, nodes' data and records
	program string
	seed    uint64
	runs    = map[string]uint64{} // so far, by test
)

// TestMain restarts this binary in its own namespaces, which end with it in any case.
func TestMain(m *testing.M) {
	flag.Parse()
	workDir = os.Getenv(insideEnv)
	if workDir == "" {
		code, err := outside()
		if err != nil {
			fmt.Fprintln(os.Stderr, "faults:", err)
		}
		os.Exit(code)
	}
	program = filepath.Join(workDir, "rlnode")
	seed, _ = strconv.ParseUint(os.Getenv(seedEnv), 10, 64)
	if err := settle(); err != nil {
		fmt.Fprintln(os.Stderr, "faults: the namespaces can't be set up (this needs root):", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// outside builds the program and runs the tests inside. It prints the seed
// first, before anything can fail.
func outside() (code int, err error) {
	if os.Getenv(seedEnv) == "" {
		os.Setenv(seedEnv, fmt.Sprint(rand.Uint32()))
	}
	if _, err := strconv.ParseUint(os.Getenv(seedEnv), 10, 64); err != nil {
		return 1, fmt.Errorf("%s is no number: %w", seedEnv, err)
	}
	fmt.Printf("%s=%s\n", seedEnv, os.Getenv(seedEnv))
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			return 1, fmt.Errorf("%w (apt-get install iproute2 nftables)", err)
		}
	}
	dir, err := os.MkdirTemp("", "rlnode-faults-*")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if err := os.Mkdir(filepath.Join(dir, "files"), 0o700); err != nil {
		return 1, err
	}
	if err := build(filepath.Join(dir, "rlnode"), "faults"); err != nil {
		return 1, err
	}
	warm, err := newThaw()
	if err != nil {
		return 1, err
	}
	defer warm.close()
	self := exec.Command("/proc/self/exe", os.Args[1:]...)
	self.Env = append(os.Environ(), insideEnv+"="+dir)
	self.Stdout, self.Stderr = os.Stdout, os.Stderr
	self.ExtraFiles = []*os.File{warm.theirs}
	self.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	// Tests and nodes run at a higher priority than other work, so that a busy
	// machine does not look like a fault. The priority belongs to the thread, and
	// the process inherits it.
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -10) // fails without permission
	if err := self.Start(); err != nil {
		return 1, err
	}
	warm.watch(self.Process.Pid)
	if err := self.Wait(); err != nil {
		return 1, err
	}
	return 0, nil
}

// build builds the program.
func build(to, tags string) error {
	if err := run("go", "build", "-tags", tags, "-o", to, "../../cmd/rlnode"); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	return nil
}

// settle prepares the namespaces.
func settle() error {
	unix.CloseOnExec(thawPipe) // a hung node must not keep it open
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/run/netns", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /run/netns: %w", err)
	}
	// Nodes' files are in memory, so that a busy disk does not look like a fault.
	if err := unix.Mount("tmpfs", filesDir(), "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	return run("ip", "link", "set", "lo", "up")
}

// filesDir is the directory of the nodes' files.
func filesDir() string { return filepath.Join(workDir, "files") }

// run runs a system tool.
func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}

// randomFor returns a scenario's own random source, so that a scenario gives
// the same outcome when run alone. With -count, each run of a test uses the
// next seed.
func randomFor(t *testing.T) *rand.Rand {
	mine := seed + runs[t.Name()]
	runs[t.Name()]++
	h := mine
	for _, c := range t.Name() {
		h = h*1099511628211 + uint64(c)
	}
	t.Logf("%s=%d", seedEnv, mine)
	return rand.New(rand.NewPCG(mine, h))
}

// lasting returns the duration of the random scenario.
func lasting() time.Duration {
	if d, err := time.ParseDuration(os.Getenv(timeEnv)); err == nil {
		return d
	}
	return 90 * time.Second
}

// boottime reads the clock that the records use.
func boottime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// patience bounds waits for events that must happen eventually.
const patience = 30 * time.Second

// within polls until ok returns "". On timeout it fails the test with the last result.
func within(t *testing.T, d time.Duration, what string, ok func() string) {
	t.Helper()
	began, last := time.Now(), ""
	for time.Since(began) < d {
		last = ok()
		if last == "" {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("%s: not within %v: %s", what, d, last)
}

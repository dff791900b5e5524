package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// processes starts programs and ends them all. They also end with this process,
// in any case: the kernel kills a process when the thread that started it ends,
// so one permanent thread starts them all.
type processes struct {
	dir      string // for their output
	requests chan startRequest
	done     sync.WaitGroup // of the starter, and of the goroutines that wait for a process

	mu  sync.Mutex // guards all
	all []*process
}

type startRequest struct {
	cmd   *exec.Cmd
	reply chan error
}

func newProcesses(dir string) *processes {
	p := &processes{dir: dir, requests: make(chan startRequest)}
	p.done.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		for r := range p.requests {
			r.reply <- r.cmd.Start()
		}
	})
	return p
}

// process is a started program.
type process struct {
	name   string
	cmd    *exec.Cmd
	log    string        // file with its output; standard output only if it is not used otherwise
	exited chan struct{} // closed when it exits
}

// start starts a program. stdin and stdout may be nil: then it has no input,
// and its output goes to the log.
func (p *processes) start(name string, stdin, stdout *os.File, program string, args ...string) (*process, error) {
	log, err := os.Create(filepath.Join(p.dir, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("create a log for %s: %w", name, err)
	}

	defer log.Close() // the process has its own descriptor

	if stdout == nil {
		stdout = log
	}

	cmd := exec.Command(program, args...)
	if stdin != nil {
		cmd.Stdin = stdin
	}

	cmd.Stdout, cmd.Stderr = stdout, log
	cmd.Env = cleanEnvironment()
	cmd.Dir = p.dir

	// In its own group, so that Ctrl-C in a terminal goes only to this program,
	// which then ends the others.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	request := startRequest{cmd: cmd, reply: make(chan error, 1)}
	p.requests <- request

	if err := <-request.reply; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}

	one := &process{name: name, cmd: cmd, log: log.Name(), exited: make(chan struct{})}
	p.mu.Lock()
	p.all = append(p.all, one)
	p.mu.Unlock()
	p.done.Go(func() {
		defer close(one.exited)
		_ = cmd.Wait() // most processes are killed
	})

	return one, nil
}

// cleanEnvironment returns the environment without rlnode's settings and
// without variables that change how Go programs run.
func cleanEnvironment() []string {
	var env []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, "RLNODE_") && name != "GOGC" && name != "GODEBUG" &&
			name != "GOMAXPROCS" && name != "GOMEMLIMIT" {
			env = append(env, e)
		}
	}
	return env
}

// close kills all processes and waits for them. None has data to keep.
func (p *processes) close() {
	p.mu.Lock()
	all := p.all
	p.mu.Unlock()
	for _, one := range all {
		one.kill()
	}
	close(p.requests)
	p.done.Wait()
}

// kill ends the process at once.
func (p *process) kill() {
	select {
	case <-p.exited: // another process may have its ID now
	default:
		_ = p.cmd.Process.Kill()
	}
}

// stop kills the process and waits until it exits.
func (p *process) stop() {
	p.kill()
	<-p.exited
}

// cpu returns the processor time that the process has used.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("read the processor time of %s: %w", p.name, err)
	}
	return processorTime(text)
}

// processorTime reads fields 14 and 15 of a /proc/<pid>/stat.
func processorTime(stat []byte) (time.Duration, error) {
	const ticks = 100 // per second, on every architecture that Go supports
	name := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[name+1:])
	if name < 0 || len(fields) < 13 {
		return 0, errors.New("read /proc/<pid>/stat: it has too few fields")
	}
	var user, system int64
	if _, err := fmt.Sscan(string(fields[11])+" "+string(fields[12]), &user, &system); err != nil {
		return 0, fmt.Errorf("read /proc/<pid>/stat: %w", err)
	}
	return time.Duration(user+system) * time.Second / ticks, nil
}

// failed returns an error with the end of the process's output.
func (p *process) failed(what string) error {
	text, _ := os.ReadFile(p.log)
	const most = 1500
	if len(text) > most {
		text = append([]byte("… "), text[len(text)-most:]...)
	}
	return fmt.Errorf("%s %s; its last words:\n%s", p.name, what, bytes.TrimSpace(text))
}

// await polls until ready returns true, the process ends, or a minute is over.
func (p *process) await(ctx context.Context, what string, ready func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()

	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()

	for !ready() {
		select {
		case <-tick.C:
		case <-p.exited:
			return p.failed("ended before " + what)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return p.failed("is not there: " + what)
			}
			return ctx.Err()
		}
	}

	return nil
}

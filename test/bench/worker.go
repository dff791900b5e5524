package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// A worker is another process of this program: with its own heap, and nothing
// else on its processor. It reads requests as lines of JSON, and answers each
// with a line of JSON. It ends at the end of its input.

// worker is the side of the bench.
type worker struct {
	*process
	in  *os.File // to the worker
	out *os.File // from it
	r   *bufio.Reader
}

// startWorker starts a worker of a kind in workerKinds, and sends it its task.
// ready receives the answer; it may be nil.
func (p *processes) startWorker(ctx context.Context, name, kind string, task, ready any) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}

	inRead, inWrite, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}

	outRead, outWrite, err := os.Pipe()
	if err != nil {
		_ = inRead.Close()
		_ = inWrite.Close()
		return nil, fmt.Errorf("make a pipe: %w", err)
	}

	w := &worker{in: inWrite, out: outRead, r: bufio.NewReader(outRead)}
	w.process, err = p.start(name, inRead, outWrite, self, "worker", kind)
	_ = inRead.Close()
	_ = outWrite.Close() // otherwise the end of the output would go unnoticed

	if err != nil {
		w.closePipes()
		return nil, err
	}
	if err := w.ask(ctx, task, ready); err != nil {
		w.close()
		return nil, err
	}

	return w, nil
}

// ask sends a line and waits for the answer. If ctx ends first, it kills the worker.
func (w *worker) ask(ctx context.Context, question, answer any) error {
	defer context.AfterFunc(ctx, w.kill)()

	line, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("encode a question: %w", err)
	}
	if _, err := w.in.Write(append(line, '\n')); err != nil {
		return w.lost(ctx)
	}

	line, err = w.r.ReadBytes('\n')
	if err != nil {
		return w.lost(ctx)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(line, answer); err != nil {
		return fmt.Errorf("read the answer of %s: %w", w.name, err)
	}

	return nil
}

func (w *worker) lost(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return w.failed("ended")
}

// close ends the worker.
func (w *worker) close() {
	w.stop()
	w.closePipes()
}

func (w *worker) closePipes() {
	_ = w.in.Close()
	_ = w.out.Close()
}

// workerKinds are the kinds of workers.
func workerKinds() map[string]func(*conversation) error {
	return map[string]func(*conversation) error{
		"answer": serveAnswer,
		"awake":  stayAwake,
		"decide": serveDecisions,
		"memory": serveMemory,
		"unary":  serveEmptyUnary,
	}
}

// conversation is the side of the worker.
type conversation struct {
	r *bufio.Reader
	w io.Writer
}

// runWorker is the main function of a worker.
func runWorker(args []string) error {
	kind := strings.Join(args, " ")
	serve, ok := workerKinds()[kind]
	if !ok {
		return fmt.Errorf("there is no worker %q: this is for the bench itself", kind)
	}
	return serve(&conversation{r: bufio.NewReader(os.Stdin), w: os.Stdout})
}

// next reads a request. It returns false at the end.
func (c *conversation) next(question any) (bool, error) {
	line, err := c.r.ReadBytes('\n')
	if err == io.EOF {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read a question: %w", err)
	}
	if err := json.Unmarshal(line, question); err != nil {
		return false, fmt.Errorf("read a question: %w", err)
	}
	return true, nil
}

func (c *conversation) answer(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode an answer: %w", err)
	}
	if _, err := c.w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write an answer: %w", err)
	}
	return nil
}

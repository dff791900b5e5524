// Command llm-gateway is a small proxy in front of a language model. It limits
// requests and tokens per minute for each API key. It includes a stub of a
// model, so that you can try it at once.
//
//	go run ./cmd/rlnode serve --rules examples/llm-gateway/rules.yaml --data-dir rlnode-data/llm     in one terminal
//	go run ./examples/llm-gateway                                                                   in another
//
// How many tokens a call takes is known only at its end. So the gateway
// reserves an estimate first, streams the answer, and then settles the actual
// usage. README.md has the commands to type.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/rlnode/rlnode/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "llm-gateway:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("llm-gateway", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8100", "where the gateway serves")
	nodes := flags.String("nodes", "http://127.0.0.1:8080", "addresses of rlnode's nodes, with commas between them")
	token := flags.String("token", os.Getenv("RLNODE_API_TOKEN"), "the nodes' --api-token")
	upstream := flags.String("upstream", "", "address of a model server (default: a stub, started here)")
	pause := flags.Duration("stub-pause", 30*time.Millisecond, "between two tokens of the stub")
	closed := flags.Bool("closed", false, "let nothing pass while no node answers")
	if err := flags.Parse(args); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(out, nil))

	var running servers
	defer running.stop()
	if *upstream == "" {
		address, err := running.start("127.0.0.1:0", stub{pause: *pause})
		if err != nil {
			return err
		}
		*upstream = "http://" + address
	}
	target, err := url.Parse(*upstream)
	if err != nil || target.Host == "" {
		return fmt.Errorf("-upstream %q must be an address such as http://127.0.0.1:9000", *upstream)
	}
	options := client.Options{Nodes: strings.Split(*nodes, ","), Token: *token, Logger: log}
	if *closed {
		options.OnError = client.Closed
	}
	limiter, err := client.New(options)
	if err != nil {
		return err
	}
	defer limiter.Close()
	// Stop the servers before the limiter closes, because requests have to settle.
	defer running.stop()
	address, err := running.start(*listen, newGateway(limiter, target, log))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, welcome, address, *upstream, *nodes)
	select {
	case err = <-running.failed:
	case <-ctx.Done():
	}
	return err
}

const welcome = `Gateway on http://%[1]s, in front of %[2]s, limited by %[3]s.

  curl -iN http://%[1]s/v1/chat/completions -H 'Authorization: Bearer k1' \
    -d '{"model": "stub", "stream": true, "max_tokens": 100, "messages": [{"role": "user", "content": "Hello there"}]}'

Once more, and the headers tell what is left; a dozen times at once, and the tokens are used up: 429. Ctrl-C ends it.

`

// servers are the running servers.
type servers struct {
	all    []*http.Server
	failed chan error
}

// start serves h on address, and returns the address on which it listens.
func (s *servers) start(address string, h http.Handler) (string, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return "", err
	}

	if s.failed == nil {
		s.failed = make(chan error, 2) // one for each server
	}

	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	s.all = append(s.all, server)
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- err
		}
	}()
	return listener.Addr().String(), nil
}

// stop stops the servers, last one first. Streams have five seconds to end, then they are cut off.
func (s *servers) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for i := len(s.all) - 1; i >= 0; i-- {
		if err := s.all[i].Shutdown(ctx); err != nil {
			s.all[i].Close() // returns before the handlers do; estimates that they have not settled stay charged
		}
	}
	s.all = nil
}

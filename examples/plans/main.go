// Command plans is an API whose customers have bought different limits. Each
// check brings its limits: they are stored with the customers, here in a map,
// and the node needs no rules for them.
//
//	go run ./cmd/rlnode serve   in one terminal
//	go run ./examples/plans     in another
//
// It then prints what to type.
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
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/rlnode/rlnode/client"
)

// plans are what customers can buy: calls a minute, and reports a day.
var plans = map[string][]client.Limit{
	"free": {{Limit: 5, Per: "1m", Name: "calls"}, {Limit: 2, Per: "day", Unit: "reports", Name: "reports"}},
	"pro":  {{Limit: 100, Per: "1m", Name: "calls"}, {Limit: 50, Per: "day", Unit: "reports", Name: "reports"}},
}

// planOf is the plan that each customer has bought; a real API would ask its database.
var planOf = map[string]string{"ada": "free", "grace": "pro"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "plans:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("plans", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8000", "where to serve")
	nodes := flags.String("nodes", "http://127.0.0.1:8080", "addresses of rlnode's nodes, with commas between them")
	token := flags.String("token", os.Getenv("RLNODE_API_TOKEN"), "a token with the scope check")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// While no node answers, each process limits by itself, by the limits of each
	// check. Local is for checks that bring none, of which there are none here.
	limiter, err := client.New(client.Options{
		Nodes: strings.Split(*nodes, ","), Token: *token, OnError: client.Local,
		Local: plans["free"], Logger: slog.New(slog.NewTextHandler(out, nil)),
	})
	if err != nil {
		return err
	}
	defer limiter.Close()

	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: routes(limiter), ReadHeaderTimeout: 10 * time.Second}
	fmt.Fprintf(out, welcome, listener.Addr(), *nodes)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	shutdown, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = server.Shutdown(shutdown)
	<-served // http.ErrServerClosed
	return err
}

const welcome = `Serving on http://%[1]s, limited by %[2]s. ada has the plan free, grace the plan pro:

  curl -i -u ada: http://%[1]s/                        5 calls a minute, and the headers that say what is left
  curl -i -u grace: http://%[1]s/                      100 calls a minute
  curl -i -u ada: http://%[1]s/report                  a call and a report, of which there are 2 a day
  rlnode subject --namespace plans --key ada --limit 5/1m --limit 2/day,unit=reports
                                                       what she has used, and what is left of her plan

Stop the node, and this server limits by itself. Ctrl-C ends it.

`

// routes returns the handler of the API, behind the middleware.
func routes(limiter *client.Client) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", answer)
	mux.HandleFunc("GET /report", answer)
	limited := client.Middleware(limiter, client.MiddlewareOptions{Request: func(r *http.Request) client.Request {
		name, _, _ := r.BasicAuth()
		q := client.Request{Namespace: "plans", Key: []string{name}, Limits: plans[planOf[name]]}
		if r.URL.Path == "/report" {
			q.Costs = map[string]int64{"requests": 1, "reports": 1}
		}
		return q
	}})(mux)

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, _, _ := r.BasicAuth(); planOf[name] == "" { // an unknown name must not become a subject
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "Who are you?", http.StatusUnauthorized)
			return
		}
		limited.ServeHTTP(w, r)
	})
}

func answer(w http.ResponseWriter, r *http.Request) {
	d, _ := client.FromContext(r.Context())
	fmt.Fprintf(w, "Hello. %d of %d %s are used (decided by %s).\n", d.Used, d.Limit, d.Unit, d.DecidedBy)
}

// Command middleware is a web server behind rlnode's limits.
//
//	go run ./cmd/rlnode serve        in one terminal
//	go run ./examples/middleware     in another
//
// It then prints what to type. The limits are in the node's rules, not here.
package main

import (
	"cmp"
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

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "middleware:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("middleware", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8000", "where to serve")
	nodes := flags.String("nodes", "http://127.0.0.1:8080", "addresses of rlnode's nodes, with commas between them")
	token := flags.String("token", os.Getenv("RLNODE_API_TOKEN"), "the nodes' --api-token")
	closed := flags.Bool("closed", false, "let nothing pass while no node answers")
	hops := flags.Int("trusted-hops", 0, "proxies in front of this server")
	if err := flags.Parse(args); err != nil {
		return err
	}

	log := slog.New(slog.NewTextHandler(out, nil))
	options := client.Options{Nodes: strings.Split(*nodes, ","), Token: *token, Logger: log}
	if *closed {
		options.OnError = client.Closed
	}
	limiter, err := client.New(options)
	if err != nil {
		return err
	}
	defer limiter.Close()

	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: routes(limiter, *hops, log), ReadHeaderTimeout: 10 * time.Second}
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

const welcome = `Serving on http://%[1]s, limited by %[2]s. With rlnode's starter rules:

  curl -i http://%[1]s/                                     a page, and the headers that say what is left
  for i in $(seq 7); do curl -s -o /dev/null -w '%%{http_code}\n' http://%[1]s/login; done
                                                            five attempts in 15 minutes, then 429
  curl -i http://%[1]s/login                                why, and Retry-After
  curl -sZ -o /dev/null -w '%%{http_code} ' -H 'X-Api-Key: k1' 'http://%[1]s/?[1-40]'
                                                            bursts of 20 for each key
  curl -i http://%[1]s/healthz                              not limited

Stop the node, and pages are served all the same (-closed: 503). Ctrl-C ends this server.

`

// routes returns the handler of the server's pages, behind the middleware.
func routes(limiter *client.Client, hops int, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		d, _ := client.FromContext(r.Context())
		if d.Rule == "" {
			fmt.Fprintf(w, "Hello. No limit applies (decided by %s).\n", d.DecidedBy)
			return
		}
		fmt.Fprintf(w, "Hello. Limit %s has %d of %d %s left (decided by %s on %s).\n", d.Rule,
			d.Remaining, d.Limit, d.Unit, d.DecidedBy, d.Node)
	})
	mux.HandleFunc("/login", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Wrong password.", http.StatusUnauthorized)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })

	requestAttributes := client.RequestAttributes(hops)
	return client.Middleware(limiter, client.MiddlewareOptions{
		Attributes: func(r *http.Request) map[string]string {
			attributes := requestAttributes(r)
			if key := cmp.Or(r.Header.Get("X-Api-Key"), r.URL.Query().Get("api_key")); key != "" {
				attributes["api_key"] = client.Fingerprint(key) // the key itself must not appear in lists and logs
			}
			return attributes
		},
		Skip: func(r *http.Request) bool { return r.URL.Path == "/healthz" },
		OnError: func(r *http.Request, err error) {
			log.Warn("no node has decided", "path", r.URL.Path, "error", err)
		},
	})(mux)
}

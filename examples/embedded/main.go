// Command embedded is a web server that limits its visitors: three processes, one limit, and no other process. Each of the three is a
// node of the cluster that keeps the limit, and decides a third of its visitors without asking anybody.
//
//	go run ./examples/embedded 1 &
//	go run ./examples/embedded 2 &
//	go run ./examples/embedded 3 &
//	curl --retry 99 --retry-connrefused -s "http://127.0.0.1:847[1-3]/"
//	curl -s -o /dev/null -w "%{http_code} " "http://127.0.0.1:847[1-3]/?[1-3]"
//	kill %1 %2 %3
//
// Of the twelve requests ten are answered with 200, the last two with 429.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/node"
)

const rules = `
version: 1
rules:
  - {name: visitors, key: [ip], consistency: exact, limits: [{limit: 10, per: 1h}]}`

func main() {
	if err := run(os.Args[len(os.Args)-1]); err != nil {
		log.Fatal(err)
	}
}

func run(number string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	n, err := node.Start(ctx, node.Config{
		Name: "web-" + number, Rules: []byte(rules), Logger: slog.Default(), LeaveOnClose: true,
		ClusterBind: "127.0.0.1", GossipPort: 7470 + int(number[0]-'0'),
		Join: []string{"127.0.0.1:7471", "127.0.0.1:7472", "127.0.0.1:7473"}, BootstrapExpect: 2,
	})
	if err != nil {
		return err
	}
	defer n.Close()
	if err := n.WaitReady(ctx); err != nil {
		return err
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello from web-"+number) })
	server := &http.Server{Addr: "127.0.0.1:847" + number, Handler: client.Middleware(n, client.MiddlewareOptions{})(hello)}
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Command embedded is a web server that limits its visitors. Three such
// processes share one limit, without any other process.
//
//	go run ./examples/embedded 1 &
//	go run ./examples/embedded 2 &
//	go run ./examples/embedded 3 &
//	curl --retry 99 --retry-delay 1 --retry-connrefused -s "http://127.0.0.1:847[1-3]/"
//	curl -s -o /dev/null -w "%{http_code} " "http://127.0.0.1:847[1-3]/?[1-3]"
//	kill %1 %2 %3
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/node"
)

const rules = `{version: 1, rules: [{name: visitors, key: [ip], consistency: exact, limits: [{limit: 10, per: 1h}]}]}`

func main() {
	number := os.Args[1]
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	n, err := node.Start(ctx, node.Config{
		Name: "web-" + number, Rules: []byte(rules), ClusterBind: "127.0.0.1", GossipPort: 7470 + int(number[0]-'0'),
		Join: []string{"127.0.0.1:7471", "127.0.0.1:7472", "127.0.0.1:7473"}, BootstrapExpect: 2, LeaveOnClose: true,
	})
	if err != nil {
		log.Fatal(err)
	}

	defer n.Close()

	if n.WaitReady(ctx) == nil {
		hello := http.HandlerFunc(func(w http.ResponseWriter,
			r *http.Request) {
			fmt.Fprintln(w, "hello from web-"+number)
		})
		go http.ListenAndServe("127.0.0.1:847"+number, client.Middleware(n, client.MiddlewareOptions{})(hello))
		<-ctx.Done()
	}
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// gubernatorPart is gubernator's rate over HTTP as a fraction of an empty
// fasthttp handler's: 8,300 checks per second versus 113,000, both measured on
// one machine with two cores in one session. It stands in where gubernator is
// not measured.
const gubernatorPart = 8_300.0 / 113_000

// gubernatorChecks are requests for single checks of a leaky bucket that never
// runs dry, one for each key.
func gubernatorChecks(keys []string) [][]byte {
	all := make([][]byte, len(keys))
	for i, key := range keys {
		all[i] = postRequest("/v1/GetRateLimits", `{"requests":[{"name":"`+plenty+`","unique_key":"`+key+
			`","hits":"1","limit":"1000000000","duration":"86400000","algorithm":"LEAKY_BUCKET"}]}`)
	}
	return all
}

// startGubernator builds gubernator from the folder of -gubernator and starts
// it as a cluster of one node. It returns nil without that flag.
func (b *bench) startGubernator(ctx context.Context, keys []string) (*server, error) {
	if b.gubernator == "" {
		return nil, nil
	}

	program := filepath.Join(b.dir, "gubernator")
	b.progress("building gubernator")

	if err := b.compile(ctx, b.gubernator, program, "./cmd/gubernator"); err != nil {
		return nil, err
	}

	host := b.host(6)

	// Its defaults, but for a cache that holds all keys and a node that knows only itself.
	p, err := b.procs.start("gubernator", nil, nil, "/usr/bin/env",
		"GUBER_GRPC_ADDRESS="+host+":1051", "GUBER_HTTP_ADDRESS="+host+":1050",
		"GUBER_ADVERTISE_ADDRESS="+host+":1051", "GUBER_MEMBERLIST_ADDRESS="+host+":7946",
		"GUBER_MEMBERLIST_BIND_ADDRESS="+host+":7946",
		"GUBER_MEMBERLIST_KNOWN_NODES="+host+":7946", fmt.Sprint("GUBER_CACHE_SIZE=",
			2*len(keys)), "OTEL_TRACES_EXPORTER=none", program)
	if err != nil {
		return nil, err
	}

	s := &server{process: p, end: p.stop, name: "gubernator over HTTP",
		target: target{host + ":1050", gubernatorChecks(keys)}, perReply: 1}
	call := newCaller()
	err = p.await(ctx, "it decides a check", func() bool {
		_, body, err := call.post(ctx, s.target.address, s.target.requests[0])
		return err == nil && bytes.Contains(body, []byte(`"error":""`))
	})
	if err != nil {
		p.stop()
		return nil, err
	}

	return s, nil
}

// compile builds a program from a folder of Go source.
func (b *bench) compile(ctx context.Context, folder, program, pkg string) error {
	build := exec.CommandContext(ctx, b.goTool, "build", "-trimpath", "-o", program, pkg)
	build.Dir = folder
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("build %s: %w\n%s", filepath.Base(program), err, out)
	}
	return nil
}

// reportGubernator compares checks over HTTP with gubernator's. Without
// gubernator it derives the ratio from part, that to the empty handler.
func (b *bench) reportGubernator(node, peer *server, part ratio) {
	const what = "single check over HTTP ÷ gubernator over HTTP"
	goal := atLeast(10, "≥ 10")
	if peer != nil {
		b.report.add("S2", what, goal, over(node.rates, peer.rates), "")
		peer.figures(b.report, "S2")
		return
	}
	b.report.add("S2", what, goal, part.times(1/gubernatorPart),
		fmt.Sprintf("gubernator not run: taken as %.3f of the empty handler", gubernatorPart))
	b.report.derived()
}

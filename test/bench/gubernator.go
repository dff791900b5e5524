package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// gubernatorPart is what gubernator did over HTTP, as a part of an empty handler on fasthttp: 8,300 checks a second against
// 113,000, both measured on one machine of two cores in one session. It stands in where -gubernator is not given.
const gubernatorPart = 8_300.0 / 113_000

// startGubernator builds gubernator from the source that -gubernator names, and starts one by itself, as it comes. It returns nil
// if there is no source.
func (b *bench) startGubernator(ctx context.Context, host string, keys []string) (*server, error) {
	if b.gubernator == "" {
		return nil, nil
	}
	program := filepath.Join(b.dir, "gubernator-program")
	build := exec.CommandContext(ctx, b.goTool, "build", "-C", b.gubernator, "-o", program, "./cmd/gubernator")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build gubernator from %s: %w: %s", b.gubernator, err, out)
	}
	p, err := b.procs.start("gubernator", nil, nil, "/usr/bin/env",
		"GUBER_HTTP_ADDRESS="+host+":8080", "GUBER_GRPC_ADDRESS="+host+":8082", "GUBER_ADVERTISE_ADDRESS="+host+":8082",
		"GUBER_MEMBERLIST_ADDRESS="+host+":8083", "GUBER_MEMBERLIST_ADVERTISE_ADDRESS="+host+":8083", "GUBER_MEMBERLIST_KNOWN_NODES="+host+":8083",
		"GUBER_LOG_LEVEL=error", program)
	if err != nil {
		return nil, err
	}
	s := &server{process: p, name: "gubernator over HTTP", target: target{host + ":8080", gubernatorRequests(keys)}, perReply: 1, end: p.stop}
	var first []byte
	err = p.await(ctx, "it answers a check", func() bool {
		_, first, err = b.caller.post(ctx, s.target.address, s.target.requests[0])
		return err == nil
	})
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("%w (%.200s)", err, first)
	}
	return s, nil
}

// gubernatorRequests are requests for single checks, one for each key, under the limit of the rule plenty.
func gubernatorRequests(keys []string) [][]byte {
	all := make([][]byte, len(keys))
	for i, key := range keys {
		all[i] = postRequest("/v1/GetRateLimits", `{"requests":[{"name":"plenty","unique_key":"`+key+
			`","hits":1,"limit":1000000000,"duration":3600000,"algorithm":"TOKEN_BUCKET"}]}`)
	}
	return all
}

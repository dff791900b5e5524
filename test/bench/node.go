package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// node is a running rlnode.
type node struct {
	*process
	name  string
	data  string // address of the data plane
	admin string // URL of the admin plane
	call  *caller
}

// startNode starts a program as a node on a loopback address, without waiting until it is ready.
func (b *bench) startNode(program, name, address, rules string, more ...string) (*node, error) {
	file := filepath.Join(b.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(rules), 0o644); err != nil {
		return nil, fmt.Errorf("write the rules: %w", err)
	}
	args := append([]string{
		"serve", "--name", name, "--bind", address, "--data-dir", filepath.Join(b.dir, name), "--rules", file,
	}, more...)
	p, err := b.procs.start(name, nil, nil, program, args...)
	if err != nil {
		return nil, err
	}
	return &node{process: p, name: name, data: address + ":8080",
		admin: "http://" + address + ":8081", call: b.caller}, nil
}

// startOne starts a lone node and waits until it is ready.
func (b *bench) startOne(ctx context.Context, program, name, address, rules string) (*node, error) {
	n, err := b.startNode(program, name, address, rules)
	if err != nil {
		return nil, err
	}
	if err := n.awaitReady(ctx); err != nil {
		n.stop()
		return nil, err
	}
	return n, nil
}

func (n *node) awaitReady(ctx context.Context) error {
	return n.await(ctx, "it is ready", func() bool {
		_, err := n.call.get(ctx, "http://"+n.data+"/readyz")
		return err == nil
	})
}

// startCluster starts nodes of one cluster, with more flags, and waits until
// each owns its part of the ring.
func (b *bench) startCluster(ctx context.Context, addresses []string, more ...string) (nodes []*node, err error) {
	defer func() {
		if err != nil {
			stopAll(nodes)
		}
	}()

	for i, address := range addresses {
		var others []string
		for j, o := range addresses {
			if j != i {
				others = append(others, o)
			}
		}

		n, err := b.startNode(b.program, "n"+strconv.Itoa(i+1), address, benchRules+slotRules,
			append(more[:len(more):len(more)], "--bootstrap-expect", strconv.Itoa(len(addresses)),
				"--join", strings.Join(others, ","))...)
		if err != nil {
			return nodes, err
		}

		nodes = append(nodes, n)
	}

	for _, n := range nodes {
		if err := n.awaitReady(ctx); err != nil {
			return nodes, err
		}
		if err := n.awaitRing(ctx, len(addresses)); err != nil {
			return nodes, err
		}
	}

	return nodes, nil
}

func stopAll(nodes []*node) {
	for _, n := range nodes {
		n.stop()
	}
}

// awaitRing waits until the node knows a ring in which n nodes have partitions.
func (n *node) awaitRing(ctx context.Context, members int) error {
	return n.await(ctx, "every node has its part of the ring", func() bool {
		var cluster struct {
			View    string
			Members []struct {
				InRing     bool `json:"in_ring"`
				Partitions int
			}
		}
		text, err := n.call.get(ctx, n.admin+"/v1/cluster")
		if err != nil || json.Unmarshal(text, &cluster) != nil || cluster.View != "connected" {
			return false
		}

		settled := 0
		for _, m := range cluster.Members {
			if m.InRing && m.Partitions > 0 {
				settled++
			}
		}

		return settled == members
	})
}

// decidedBy returns how the node decides a check, without taking anything.
func (n *node) decidedBy(ctx context.Context, attribute, key string) (string, error) {
	body := strings.TrimSuffix(checkBody(attribute, key), "}") + `,"peek":true}`
	_, text, err := n.call.post(ctx, n.data, postRequest("/v1/check", body))
	if err != nil {
		return "", err
	}
	var answer struct {
		DecidedBy string `json:"decided_by"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return "", fmt.Errorf("read the answer of %s: %w", n.name, err)
	}
	return answer.DecidedBy, nil
}

// keysBy finds n keys that the node decides in a given way: "owner", "forward".
func (n *node) keysBy(ctx context.Context, attribute, decidedBy string, count int) ([]string, error) {
	var found []string
	for i := 0; len(found) < count; i++ {
		if i > 100*count {
			return nil, fmt.Errorf("%s decides none of %d keys as %s", n.name, i, decidedBy)
		}

		by, err := n.decidedBy(ctx, attribute, keyName(i))
		if err != nil {
			return nil, err
		}

		if by == decidedBy {
			found = append(found, keyName(i))
		}
	}

	return found, nil
}

// metrics returns the values of /metrics, by name and labels as written there.
func (n *node) metrics(ctx context.Context) (map[string]float64, error) {
	text, err := n.call.get(ctx, n.admin+"/metrics")
	if err != nil {
		return nil, err
	}
	return parseMetrics(text), nil
}

func parseMetrics(text []byte) map[string]float64 {
	values := make(map[string]float64)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		space := strings.LastIndexByte(line, ' ')
		if space < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[space+1:], 64); err == nil {
			values[line[:space]] = v
		}
	}

	return values
}

// decisions returns the number of checks by decided_by, of all rules or of one.
func decisions(metrics map[string]float64, rule string) map[string]float64 {
	by := make(map[string]float64)
	for name, v := range metrics {
		labels, ok := strings.CutPrefix(name, "rlnode_checks_total{")
		if !ok || !strings.Contains(labels, `rule="`+rule+`"`) {
			continue
		}
		_, decided, _ := strings.Cut(labels, `decided_by="`)
		decided, _, _ = strings.Cut(decided, `"`)
		by[decided] += v
	}
	return by
}

// processorTimeOf returns the total processor time of several processes.
func processorTimeOf(nodes []*node) (total time.Duration, err error) {
	for _, n := range nodes {
		used, err := n.cpu()
		if err != nil {
			return 0, err
		}
		total += used
	}
	return total, nil
}

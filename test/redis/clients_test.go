package redis

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// A client has to show, in both versions of the protocol, with and without TLS
// and a token, that it connects, takes from a bucket and a window, sends many
// commands at once, reads a rule's decision, and goes on after an error. A
// wrong token must be refused. As a loop, it sends a command now and then,
// whatever fails, and says at the end how long it has been without an answer.

// clients are the programs that try a client, by its name: what to run before "suite" or "loop".
var clients = map[string][]string{
	"redis-py":   {"python/.venv/bin/python", "python/redis_py.py"},
	"ioredis":    {"node", "js/clients.mjs", "ioredis"},
	"node-redis": {"node", "js/clients.mjs", "node-redis"},
	"jedis": {"java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp",
		"java/classes:java/lib/*", "Clients", "jedis"},
	"lettuce": {"java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp",
		"java/classes:java/lib/*", "Clients", "lettuce"},
}

var probe = &http.Client{Timeout: time.Second,
	Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}

func TestClients(t *testing.T) {
	cert, key := certificate(t)
	plain := startNode(t)
	secure := startNode(t, "--http-cert", cert, "--http-key", key, "--api-token", token)
	env := append(os.Environ(), "PLAIN="+plain.redis, "SECURE="+secure.redis, "TOKEN="+token, "CA="+cert)
	for name, command := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := exec.CommandContext(t.Context(), command[0],
				append(command[1:len(command):len(command)], "suite")...)
			run.Env = env
			out, err := run.CombinedOutput()
			if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "ok") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	t.Run("go-redis", func(t *testing.T) {
		t.Parallel()
		for _, kind := range []string{"plain", "secure"} {
			for _, protocol := range []int{2, 3} {
				showGoRedis(t, kind, protocol, plain.redis, secure.redis, cert)
			}
		}
	})
	t.Run("redis-cli", func(t *testing.T) {
		t.Parallel()
		tryRedisCLI(t, plain.redis, secure.redis, cert)
	})
	t.Run("redis-benchmark", func(t *testing.T) {
		t.Parallel()
		tryRedisBenchmark(t, plain.redis)
	})
}

// options returns go-redis' options.
func options(t *testing.T, kind string, protocol int, plain, secure, ca string) *goredis.Options {
	o := &goredis.Options{Addr: plain, Protocol: protocol, MaxRetries: -1, ReadTimeout: 10 * time.Second}
	if kind == "secure" {
		text, err := os.ReadFile(ca)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(text)
		o.Addr, o.Password, o.TLSConfig = secure, token, &tls.Config{RootCAs: roots}
	}
	return o
}

func showGoRedis(t *testing.T, kind string, protocol int, plain, secure, ca string) {
	ctx := t.Context()
	r := goredis.NewClient(options(t, kind, protocol, plain, secure, ca))
	defer r.Close()
	key := fmt.Sprintf("go-%s-%d", kind, protocol)
	numbers := func(words ...any) []int64 {
		t.Helper()
		list, err := r.Do(ctx, words...).Int64Slice()
		if err != nil {
			t.Fatalf("%v: %v", words, err)
		}
		return list
	}
	expect := func(what string, have, want any) {
		t.Helper()
		if !reflect.DeepEqual(have, want) {
			t.Errorf("%s, %s, RESP%d: have %v, want %v", what, kind, protocol, have, want)
		}
	}
	for i := range int64(5) {
		expect("throttle", numbers("CL.THROTTLE", key, 4, 5, 18000)[:4], []int64{0, 5, 4 - i, -1})
	}
	expect("throttle", numbers("CL.THROTTLE", key, 4, 5, 18000)[:3], []int64{1, 5, 0})

	pipeline := r.Pipeline()
	var replies []*goredis.Cmd
	for range 100 {
		replies = append(replies, pipeline.Do(ctx, "CL.THROTTLE", key+"-pipe", 49, 1, 36000))
	}
	if _, err := pipeline.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	for i, one := range replies {
		list, _ := one.Int64Slice()
		expect("pipeline", list[0], int64(i/50))
	}

	for _, want := range [][]int64{{1, 1}, {2, 1}, {2, 0}} {
		expect("increx", numbers("INCREX", key, "UBOUND", 2, "EX", 3600, "ENX"), want)
	}
	if ttl := r.TTL(ctx, key).Val(); ttl <= 17000*time.Second || ttl > 18000*time.Second {
		t.Errorf("have a TTL of %v", ttl)
	}
	expect("exists", r.Exists(ctx, key, key+"-none").Val(), int64(1))
	check, err := r.Do(ctx, "RL.CHECK", "plan", key).Result()
	if text := fmt.Sprint(check); err != nil || !strings.Contains(text, "limit") ||
		!strings.Contains(text, "remaining") {
		t.Errorf("have %v, %v", check, err)
	}
	if _, isMap := check.(map[any]any); isMap != (protocol == 3) {
		t.Errorf("RESP%d: have a %T", protocol, check)
	}
	if err := r.Get(ctx, key).Err(); err == nil || !strings.Contains(err.Error(), "rlnode limits rates") {
		t.Errorf("GET: have %v", err)
	}
	expect("del", r.Del(ctx, key, key+"-none").Val(), int64(1))
	if kind == "secure" {
		wrong := options(t, kind, protocol, plain, secure, ca)
		wrong.Password = "wrong"
		other := goredis.NewClient(wrong)
		defer other.Close()
		if err := other.Ping(ctx).Err(); err == nil {
			t.Error("a wrong token was accepted")
		}
	}
}

// tryRedisCLI types commands as one does: as arguments, and one after the other.
func tryRedisCLI(t *testing.T, plain, secure, ca string) {
	cli := func(input string, address string, args ...string) string {
		t.Helper()
		host, port, _ := strings.Cut(address, ":")
		run := exec.CommandContext(t.Context(), "redis-cli", append([]string{"-h", host, "-p", port}, args...)...)
		run.Stdin = strings.NewReader(input)
		out, err := run.CombinedOutput()
		if err != nil {
			t.Fatalf("redis-cli %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	// Typed, it asks for descriptions of the commands first. With -c it would
	// follow a redirection, but there is none.
	if have := cli("help cl.throttle\nPING\n", plain); !strings.Contains(have,
		"Takes from a token bucket") || !strings.HasSuffix(have, "PONG") {
		t.Errorf("help: have %q", have)
	}
	if have := cli("", plain, "-c", "CL.THROTTLE", "cli-c", "1", "1", "3600"); have != "0\n2\n1\n-1\n3600" {
		t.Errorf("-c: have %q", have)
	}
	for _, version := range []string{"-2", "-3"} {
		if have := cli("", plain, version, "CL.THROTTLE", "cli"+version, "15", "30", "60"); have != "0\n16\n15\n-1\n2" {
			t.Errorf("%s: have %q", version, have)
		}
	}
	if have := cli("PING\nINCREX cli UBOUND 1 EX 60 ENX\nGET cli\nDEL cli\n",
		plain); !strings.HasPrefix(have,
		"PONG\n1\n1\nERR unknown command 'GET', rlnode limits rates") || !strings.HasSuffix(have,
		"\n1") {
		t.Errorf("one after the other: have %q", have)
	}
	if have := cli("", secure, "--tls", "--cacert", ca, "-a", token, "--no-auth-warning", "PING"); have != "PONG" {
		t.Errorf("with TLS and a token: have %q", have)
	}
	if have := cli("", secure, "--tls", "--cacert", ca, "PING"); !strings.HasPrefix(have, "NOAUTH") {
		t.Errorf("without a token: have %q", have)
	}

	// In bulk, as files are loaded. It ends by an ECHO of random bytes.
	var many strings.Builder
	for range 1000 {
		many.WriteString("*5\r\n$11\r\nCL.THROTTLE\r\n$4\r\nbulk\r\n$3\r\n999\r\n$1\r\n1\r\n$5\r\n86400\r\n")
	}
	if have := cli(many.String(), plain, "--pipe"); !strings.Contains(have, "errors: 0, replies: 1000") {
		t.Errorf("--pipe: have %q", have)
	}
	if have := cli("", plain, "CL.THROTTLE", "bulk", "999", "1", "86400"); !strings.HasPrefix(have, "1\n1000\n0\n") {
		t.Errorf("after 1,000: have %q", have)
	}
}

func tryRedisBenchmark(t *testing.T, address string) {
	host, port, _ := strings.Cut(address, ":")
	for _, extra := range [][]string{{"-P", "1"}, {"-P", "16"}} {
		args := append([]string{"-h", host, "-p", port, "-n", "10000", "-c", "8", "-r", "1000", "--csv"}, extra...)
		out, err := exec.CommandContext(t.Context(), "redis-benchmark",
			append(args, "CL.THROTTLE", "bench:__rand_int__", "15", "30", "60")...).CombinedOutput()
		if err != nil || strings.Contains(string(out), "ERR") || !strings.Contains(string(out), "CL.THROTTLE") {
			t.Errorf("%v: %v\n%s", extra, err, out)
		}
	}
}

// report is what a loop says at its end.
type report struct {
	OK       int `json:"ok"`
	Failed   int `json:"failed"`
	SilentMS int `json:"silent_ms"`
}

// TestClientsOverARollingRestart restarts all nodes of a cluster, one after the
// other. Each client has one address. It must find its node again, and miss
// nothing while the others restart.
func TestClientsOverARollingRestart(t *testing.T) {
	nodes := startCluster(t)
	var wait sync.WaitGroup
	type running struct {
		name   string
		run    *exec.Cmd
		stdin  io.Closer
		stdout bytes.Buffer
	}
	var loops []*running
	for name, command := range clients {
		r := &running{name: name,
			run: exec.CommandContext(t.Context(), command[0], append(command[1:len(command):len(command)], "loop")...)}
		r.run.Env = append(os.Environ(), "ROLLING="+nodes[0].redis, "PLAIN="+nodes[0].redis)
		r.run.Stdout, r.run.Stderr = &r.stdout, os.Stderr
		var err error
		if r.stdin, err = r.run.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := r.run.Start(); err != nil {
			t.Fatal(err)
		}
		loops = append(loops, r)
	}
	over := make(chan struct{})
	reports := map[string]report{}
	var mu sync.Mutex
	wait.Go(func() {
		own := loopGoRedis(nodes[0].redis, over)
		mu.Lock()
		reports["go-redis"] = own
		mu.Unlock()
	})

	for _, n := range nodes {
		time.Sleep(2 * time.Second) // all loops have an answer
		n.stop()
		n.start()
		n.awaitReady()
	}
	time.Sleep(6 * time.Second) // longer than any client waits before it connects again
	close(over)
	for _, r := range loops {
		_ = r.stdin.Close()
		var one report
		if err := r.run.Wait(); err != nil {
			t.Errorf("%s: %v", r.name, err)
		} else if err := json.Unmarshal(r.stdout.Bytes(), &one); err != nil {
			t.Errorf("%s: %v: %s", r.name, err, r.stdout.String())
		}
		mu.Lock()
		reports[r.name] = one
		mu.Unlock()
	}
	wait.Wait()
	for name, one := range reports {
		t.Logf("%s: %+v", name, one)
		if one.OK < 50 || one.SilentMS > 4000 {
			t.Errorf("%s: have %+v", name, one)
		}
	}
}

func loopGoRedis(address string, over <-chan struct{}) (r report) {
	client := goredis.NewClient(&goredis.Options{Addr: address})
	defer client.Close()
	last := time.Now()
	for {
		select {
		case <-over:
			r.SilentMS = int(time.Since(last).Milliseconds())
			return r
		case <-time.After(20 * time.Millisecond):
		}
		err := client.Do(context.Background(), "CL.THROTTLE", "loop-go", 1000000, 1000000, 60).Err()
		switch {
		case err == nil || errors.Is(err, goredis.Nil):
			r.OK++
			last = time.Now()
		default:
			r.Failed++
		}
	}
}

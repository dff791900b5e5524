package redis

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestDocs types the commands of docs/redis.md as they stand, but for the port.
func TestDocs(t *testing.T) {
	n := startNode(t)
	text, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(n.redis, ":")
	blocks := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)<!-- (\\w+ \\w+) -->\n```\\w*\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		blocks[m[1]] = m[2]
	}
	typed := 0
	for name, block := range blocks {
		kind, name, _ := strings.Cut(name, " ")
		block = strings.ReplaceAll(strings.ReplaceAll(block, "redis-cli ", "redis-cli -p "+port+" "), "6379", port)
		run, want := exec.Command("bash", "-ec", block), blocks["answer "+name]
		switch kind {
		case "answer":
			continue
		case "python":
			run, want = exec.Command("python/.venv/bin/python", "-c", block), "True\n"
		}
		out, err := run.CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("%s: %v, have\n%s\nwant\n%s", name, err, out, want)
		}
		typed++
	}
	if typed != 3 {
		t.Errorf("%d blocks were typed", typed)
	}
}

package admin_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/cluster"
)

// fakeRegions is a fake admin.RegionRemover.
type fakeRegions struct{}

func (fakeRegions) RemoveRegion(_ context.Context, name string) (int64, error) {
	switch name {
	case "gone":
		return 8, nil
	case "there":
		return 0, fmt.Errorf("remove: %w", cluster.ErrRefused)
	case "far":
		return 0, fmt.Errorf("remove: %w", cluster.ErrNoPrimary)
	case "slow":
		return 0, context.DeadlineExceeded
	}
	return 0, fmt.Errorf("remove: %w", cluster.ErrNotFound)
}

func TestRemoveRegion(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.Regions, c.AdminToken = fakeRegions{}, "secret" })
	token := map[string]string{"Authorization": "Bearer secret"}
	for _, tt := range []struct {
		path   string
		header map[string]string
		status int
		want   string
	}{
		{"gone", nil, 401, "unauthorized"},
		{"gone", token, 200, `{"removed":"gone","version":8}`},
		{"there", token, 409, "member-there"},
		{"far", token, 503, "no-primary"},
		{"slow", token, 408, "whether it took effect is unknown"},
		{"nobody", token, 404, "not-found"},
		{strings.Repeat("x", 1025), token, 400, "bad-value"},
	} {
		resp, body := n.Do(apitest.Call{Method: "DELETE",
			URL: n.AdminURL + "/v1/regions/" + tt.path, Header: tt.header})
		if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%.30s: have %d %s, want %d %s", tt.path, resp.StatusCode, body, tt.status, tt.want)
		}
	}
}

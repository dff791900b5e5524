package admin_test

import (
	"flag"
	"os"
	"testing"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/httpd"
)

// TestMain lets more tests go on at once than there are processors: the longest of them wait.
func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "8")
	os.Exit(apitest.Main(m, apitest.AdminCodes...))
}

// startNode starts a node on free ports. It is ready unless change, which may
// be nil, says otherwise.
func startNode(t testing.TB, change func(*apitest.Config)) *apitest.Node {
	t.Helper()
	return apitest.Start(t, change, func(d *api.Doors, c apitest.Config) (apitest.DataPlane, error) {
		return httpd.Open(d, httpd.Config{Addr: "127.0.0.1:0", ReadTimeout: c.ReadTimeout, Tracer: c.Tracer})
	})
}

package e2e

// Proven here alone: clients of HTTP/2 other than Go's lose no request that they send at once on a
// new connection.

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// burst sends 50 requests on a new connection before it knows how many the service takes: every
// other one adds a pet. It prints how often each outcome came.
const burst = `
const http2 = require("node:http2");
const {ADDRESS, KEY, ROOT} = process.env;
const session = http2.connect(ADDRESS, {ca: require("node:fs").readFileSync(ROOT)});
const outcomes = {};
let left = 50;
for (let i = 0; i < 50; i++) {
	const body = i % 2 ? '{"name":"Rex","categoryId":7}' : "";
	const request = session.request({":path": "/v1/pets", ":method": body ? "POST" : "GET",
		"authorization": "Bearer " + KEY, "content-length": body.length});
	let outcome = "nothing";
	request.on("response", (headers) => { outcome = headers[":status"]; });
	request.on("error", ({code}) => { outcome = code; });
	request.on("close", () => {
		outcomes[outcome] = (outcomes[outcome] ?? 0) + 1;
		if (--left) return;
		console.log(JSON.stringify(outcomes));
		session.close();
	});
	request.resume();
	request.end(body);
}`

// TestABurstOnANewConnectionLosesNothing: clients know only after their first requests that the
// service takes 100 at once.
func TestABurstOnANewConnectionLosesNothing(t *testing.T) {
	t.Parallel()
	s := startTLS(t)
	root := filepath.Join(t.TempDir(), "root.pem")
	noError(t, os.WriteFile(root, testIdentity().cert, 0o600))
	node := exec.Command("node", "-e", burst)
	node.Env = append(os.Environ(), "ADDRESS="+s.address(), "KEY="+s.key, "ROOT="+root)
	node.Stderr = os.Stderr
	out, err := node.Output()
	if err != nil || string(out) != `{"200":25,"201":25}`+"\n" {
		t.Errorf("node:http2 gets %s, %v", out, err)
	}
	h2load := exec.Command("h2load", "-n50", "-c1", "-m50", "-H", "Authorization: "+s.bearer(),
		s.url+"/pets")
	out, err = h2load.Output()
	if err != nil {
		t.Fatalf("install Debian's nghttp2-client: %v", err)
	}
	const all = "50 succeeded, 0 failed, 0 errored, 0 timeout\nstatus codes: 50 2xx,"
	if !strings.Contains(string(out), all) {
		t.Errorf("h2load says\n%s", out)
	}
}

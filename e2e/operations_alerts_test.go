package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestTheAlertsFireWhenTheyShould gives the rules of docs/deploy to Prometheus' own checks. Every
// alert must have a case in alerts_test.yml and a row in the documents, and every metric in the
// rules must be one that the service has.
func TestTheAlertsFireWhenTheyShould(t *testing.T) {
	for _, args := range [][]string{
		{"check", "rules", "../docs/deploy/alerts.yml"},
		{"test", "rules", "alerts_test.yml"},
	} {
		out, err := exec.Command("promtool", args...).CombinedOutput()
		if err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	rules := readFile(t, "../docs/deploy/alerts.yml")
	cases := readFile(t, "alerts_test.yml")
	operating := readFile(t, "../docs/operating.md")
	metrics := readFile(t, "../metrics.go")
	names := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rules, -1)
	if len(names) == 0 {
		t.Error("there are no alerts")
	}
	for _, name := range names {
		if !strings.Contains(cases, "alertname: "+name[1]+"\n") {
			t.Errorf("%s has no case in alerts_test.yml", name[1])
		}
		if !strings.Contains(operating, "| `"+name[1]+"` |") {
			t.Errorf("docs/operating.md does not explain %s", name[1])
		}
	}
	for _, metric := range regexp.MustCompile(`petstore_\w+`).FindAllString(rules, -1) {
		for _, suffix := range []string{"_sum", "_count", "_bucket"} {
			metric = strings.TrimSuffix(metric, suffix)
		}
		if !strings.Contains(metrics, `"`+metric+`"`) {
			t.Errorf("the service has no metric %s", metric)
		}
	}
}

// TestPrometheusScrapesTheService runs it with the documented settings, and asks it for a metric of
// the service.
func TestPrometheusScrapesTheService(t *testing.T) {
	t.Parallel()
	s := start(t, debugFlags...)
	dir := t.TempDir()
	address := "localhost" + freePort(t)
	settings := readFile(t, "../docs/deploy/prometheus.yml")
	settings = strings.Replace(settings, "localhost:6060", strings.TrimPrefix(s.debug, "http://"), 1)
	settings = strings.ReplaceAll(settings, "interval: 15s", "interval: 1s")
	noError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(settings), 0o600))
	rules := readFile(t, "../docs/deploy/alerts.yml")
	noError(t, os.WriteFile(filepath.Join(dir, "alerts.yml"), []byte(rules), 0o600))
	prometheus := exec.Command("prometheus", "--config.file=prometheus.yml",
		"--storage.tsdb.path=data", "--web.listen-address="+address)
	prometheus.Dir = dir
	var log logBuffer
	prometheus.Stderr = &log
	noError(t, prometheus.Start())
	t.Cleanup(func() { kill(t, prometheus) })
	eventually(t, 30*time.Second, func() error {
		response, err := http.Get("http://" + address + "/api/v1/query?query=petstore_build_info")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err == nil && !strings.Contains(string(body), `"job":"petstore"`) {
			err = fmt.Errorf("it says %s, and logs\n%s", body, &log)
		}
		return err
	})
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	noError(t, err)
	return string(text)
}

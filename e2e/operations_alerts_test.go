package e2e

// Proven here alone: the alerts fire when they should, by promtool's own tests; each is documented,
// and uses metrics that there are.

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	prometheus "github.com/prometheus/common/model"
)

// TestTheAlertsFireWhenTheyShould gives the rules of docs/deploy to Prometheus' own checks. Every
// alert must have a case in alerts_test.yml, or in alerts_days_test.yml, and a row in the
// documents, and every metric in the rules must be one that the service has.
func TestTheAlertsFireWhenTheyShould(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"check", "rules", "../docs/deploy/alerts.yml"},
		{"test", "rules", "alerts_test.yml", "alerts_days_test.yml"},
	} {
		out, err := exec.Command("promtool", args...).CombinedOutput()
		if err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	rules := readFile(t, "../docs/deploy/alerts.yml")
	cases := readFile(t, "alerts_test.yml") + readFile(t, "alerts_days_test.yml")
	operating := readFile(t, "../docs/operating.md")
	metrics := readFile(t, "../metrics.go")
	names := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rules, -1)
	if len(names) == 0 {
		t.Error("there are no alerts")
	}
	for _, name := range names {
		if !strings.Contains(cases, "alertname: "+name[1]+"\n") {
			t.Errorf("%s has no case in alerts_test.yml or alerts_days_test.yml", name[1])
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

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	noError(t, err)
	return string(text)
}

// scrape reads the metrics with Prometheus' parser, and fails on what promtool
// would find fault with.
func scrape(t *testing.T, s *server) map[string]*dto.MetricFamily {
	t.Helper()
	text := s.get(t, "/metrics")
	parser := expfmt.NewTextParser(prometheus.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	noError(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	return families
}

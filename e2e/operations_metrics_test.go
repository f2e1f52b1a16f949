package e2e

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	prometheus "github.com/prometheus/common/model"
)

// TestTheMetricsAreThoseOfPrometheus gives what /metrics answers to Prometheus'
// own parser and to the rules that promtool checks, and then holds the numbers
// against what was asked for.
func TestTheMetricsAreThoseOfPrometheus(t *testing.T) {
	s := start(t, debugFlags...)
	for range 30 {
		s.expect(t, s.key, "200 of 1000000000")
	}
	if got, err := call(s.url, s.key, "GET", "/pets/1", "", ""); err != nil ||
		got.status != http.StatusNotFound {
		t.Fatalf("GET /pets/1 gets %v, %v", got, err)
	}
	families := scrape(t, s)

	duration := families["petstore_request_duration_seconds"]
	if duration.GetType() != dto.MetricType_HISTOGRAM {
		t.Fatalf("the durations are a %s", duration.GetType())
	}
	for _, m := range duration.GetMetric() {
		h := m.GetHistogram()
		below := uint64(0)
		for _, b := range h.GetBucket() {
			if b.GetCumulativeCount() < below {
				t.Errorf("%v: the bucket to %v holds %d and the one before it %d", m.GetLabel(),
					b.GetUpperBound(), b.GetCumulativeCount(), below)
			}
			below = b.GetCumulativeCount()
		}
		if below != h.GetSampleCount() {
			t.Errorf("%v: the buckets hold %d of %d", m.GetLabel(), below, h.GetSampleCount())
		}
	}
	for name, want := range map[string]float64{
		`petstore_requests_total{operation="listPets",status="200"}`: 30,
		`petstore_requests_total{operation="getPet",status="404"}`:   1,
		`petstore_errors_total{code="not_found"}`:                    1,
	} {
		if got := s.metric(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for _, name := range []string{"process_resident_memory_bytes", "process_cpu_seconds_total"} {
		if families[name] == nil {
			t.Errorf("there is no %s", name)
		}
	}
}

// scrape reads the metrics with Prometheus' parser, and fails on what promtool
// would find fault with.
func scrape(t *testing.T, s *server) map[string]*dto.MetricFamily {
	t.Helper()
	response, err := http.Get(s.debug + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(prometheus.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	return families
}

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
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

// TestStrangersFireNoAlert attacks the service in ways that cost little: with forged keys from an
// address that is spent, and with responses that nobody takes and bodies that come slowly.
func TestStrangersFireNoAlert(t *testing.T) {
	s := startTLS(t, debugFlags...)
	client := &http.Client{Transport: transport(), Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	long := animalJSON(strings.Repeat("x", 200))
	for range 30 { // a page of more than HTTP/2 takes before the client does
		_, err := s.send(t.Context(), client, "POST", "/pets", long)
		noError(t, err)
	}
	s.flood(60, func(int) guess { return guess{} }) // now the address is spent
	before := s.numbers()

	mute, err := s.openHTTP2(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	noError(t, err)
	defer mute.conn.Close()
	for i := range uint32(5) { // ten streams are all that a connection may have at once
		noError(t, mute.list(4*i+1, true, true))
		noError(t, mute.page(4*i+3))
	}
	noError(t, mute.buffer.Flush())
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			body := func() (io.ReadCloser, error) {
				begin, rest := strings.NewReader(long[:9]), strings.NewReader(long[9:])
				return io.NopCloser(io.MultiReader(begin, pause{}, rest)), nil
			}
			slow, _ := body()
			r, _ := http.NewRequest("POST", s.url+"/pets", slow)
			r.GetBody = body // a stream beyond the limit is refused, and sent again
			r.Header.Set("Authorization", s.bearer())
			response, err := client.Do(r)
			if err != nil || response.StatusCode != http.StatusCreated {
				t.Errorf("a slow body gets %v, %v", response, err)
			}
		})
	}
	refused := 0
	eventually(t, 30*time.Second, func() error {
		refused += s.guessAtOnce(client, 200)
		if refused < 20 {
			return fmt.Errorf("%d lookups were refused", refused)
		}
		return nil
	})
	clients.Wait()
	noError(t, mute.conn.Close())
	eventually(t, longEnough, func() error {
		const pages = `petstore_requests_total{operation="page",status="200"}`
		if n := s.numbers()[pages]; n != 5 {
			return fmt.Errorf("%v responses that were not taken have ended", n)
		}
		return nil
	})
	after := s.numbers()
	if got := after[`petstore_errors_total{code="lookup_refused"}`]; got != float64(refused) {
		t.Errorf("%v lookups were refused, and %d got 503", got, refused)
	}
	wantNoAlert(t, before, after)
	if log := s.log.String(); strings.Contains(log, "ERROR") {
		t.Errorf("the log is %s", tail(log))
	}
}

// guessAtOnce sends n forged keys, and returns how many got 503.
func (s *server) guessAtOnce(client *http.Client, n int) (refused int) {
	var unavailable atomic.Int64
	var guessers sync.WaitGroup
	for range n {
		guessers.Go(func() {
			forged := "Authorization: Bearer " + forge(randomText(32))
			got, err := s.send(s.t.Context(), client, "GET", "/pets", "", forged)
			if err == nil && got.status == http.StatusServiceUnavailable {
				unavailable.Add(1)
			}
		})
	}
	guessers.Wait()
	return int(unavailable.Load())
}

// wantNoAlert tells Prometheus that the metrics go on as they went from before to after, at every
// scrape for half an hour.
func wantNoAlert(t *testing.T, before, after map[string]float64) {
	t.Helper()
	var test strings.Builder
	test.WriteString("rule_files: [alerts.yml]\nevaluation_interval: 15s\n" +
		"tests:\n- interval: 15s\n  input_series:\n")
	for name, value := range after {
		if strings.Contains(name, `status="5`) {
			t.Errorf("there is %s", name)
		}
		first := int64(before[name])
		more := int64(value) - first
		fmt.Fprintf(&test, "  - {series: '%s', values: '%d+%dx120'}\n", name, first, more)
	}
	test.WriteString("  alert_rule_test:\n")
	rules := readFile(t, "../docs/deploy/alerts.yml")
	for _, name := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rules, -1) {
		fmt.Fprintf(&test, "  - {eval_time: 28m, alertname: %s, exp_alerts: []}\n", name[1])
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "test.yml")
	noError(t, os.WriteFile(filepath.Join(dir, "alerts.yml"), []byte(rules), 0o600))
	noError(t, os.WriteFile(file, []byte(test.String()), 0o600))
	out, err := exec.Command("promtool", "test", "rules", file).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// page asks for a file of the page, without a key.
func (f *frames) page(stream uint32) error {
	f.header.Reset()
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: "petstore"}, {Name: ":path", Value: "/page.js"},
	} {
		if err := f.hpack.WriteField(field); err != nil {
			return err
		}
	}
	return f.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: f.header.Bytes(), EndStream: true, EndHeaders: true})
}

// pause is a part of a body that takes a second and holds nothing.
type pause struct{}

func (pause) Read([]byte) (int, error) {
	time.Sleep(time.Second)
	return 0, io.EOF
}

// numbers are all metrics, by name and labels.
func (s *server) numbers() map[string]float64 {
	s.t.Helper()
	_, text := getAs(s.t, s.debug+"/metrics", "")
	numbers := map[string]float64{}
	samples := regexp.MustCompile(`(?m)^(petstore_\S+) (\S+)$`).FindAllStringSubmatch(text, -1)
	for _, sample := range samples {
		value, err := strconv.ParseFloat(sample[2], 64)
		noError(s.t, err)
		numbers[sample[1]] = value
	}
	return numbers
}

// TestPrometheusScrapesTheService runs it with the documented settings, and asks it for a metric of
// the service.
func TestPrometheusScrapesTheService(t *testing.T) {
	t.Parallel()
	s := start(t, debugFlags...)
	dir := t.TempDir()
	address := "localhost" + freePort(t)
	settings := readFile(t, "../docs/deploy/prometheus.yml")
	settings = strings.Replace(settings, "127.0.0.1:6060", strings.TrimPrefix(s.debug, "http://"),
		1)
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

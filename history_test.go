package main

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// TestTheHistoryHoldsAnHourInAMebibyte: the page begins with it, and a busy service must not grow.
func TestTheHistoryHoldsAnHourInAMebibyte(t *testing.T) {
	h := &history{}
	numbers := map[string]float64{"petstore_bans_total": 7, "process_cpu_seconds_total": 1.5}
	for i := range 3 * maxNumbers {
		numbers[fmt.Sprintf(`petstore_requests_total{operation="listPets",status="%d"}`, i)] = 1e6
	}
	for i := range 2 * maxSamples {
		h.add(processStart.Add(time.Duration(i)*5*time.Second), numbers)
	}
	if len(h.samples) != maxSamples {
		t.Errorf("there are %d samples, want those of an hour, %d", len(h.samples), maxSamples)
	}
	if oldest := time.UnixMilli(h.samples[0].Time).Sub(processStart).Round(time.Second); oldest != time.Hour {
		t.Errorf("the oldest sample is of %v after the start, want an hour", oldest)
	}
	bytes := 0
	for _, s := range h.samples {
		bytes += 8 * cap(s.Values)
	}
	if bytes > 1<<20 {
		t.Errorf("the values take %d bytes", bytes)
	}
	if _, drawn := h.places["petstore_bans_total"]; drawn {
		t.Error("a number that no chart draws is kept")
	}
}

// TestTheHistoryTellsItsNumbersByName: a number that comes later is not in the samples before it.
func TestTheHistoryTellsItsNumbersByName(t *testing.T) {
	h := &history{}
	const cpu, requests = "process_cpu_seconds_total", `petstore_requests_total{operation="getPet",status="200"}`
	h.add(processStart, map[string]float64{cpu: 1})
	h.add(processStart.Add(5*time.Second), map[string]float64{cpu: 2, requests: 3})
	text := h.json()
	var read struct {
		Now     int64
		Places  map[string]int
		Samples []sample
	}
	must(t, json.Unmarshal(text, &read))
	if len(read.Samples) != 2 || len(read.Samples[0].Values) != 1 || len(read.Samples[1].Values) != 2 {
		t.Fatalf("the history is %s", text)
	}
	last := read.Samples[1]
	wrongTime := last.Time != processStart.UnixMilli()+5000
	if last.Values[read.Places[cpu]] != 2 || last.Values[read.Places[requests]] != 3 || wrongTime {
		t.Errorf("the last sample is %+v, and the places are %v", last, read.Places)
	}
	if age := time.Now().UnixMilli() - read.Now; age < 0 || age > time.Minute.Milliseconds() {
		t.Errorf("the service's time is %d ms ago", age)
	}
}

// TestTheHistoryHasWhatTheChartsDraw: these names are copied from charts in web/operator.js.
func TestTheHistoryHasWhatTheChartsDraw(t *testing.T) {
	numbers := map[string]float64{}
	for _, name := range []string{
		`petstore_requests_total{operation="other",status="404"}`,
		`petstore_request_duration_seconds_bucket{operation="listPets",le="1"}`,
		`petstore_request_duration_seconds_bucket{operation="createPet",le="1"}`,
		`petstore_request_duration_seconds_bucket{operation="getPet",le="1"}`,
		"petstore_commit_requests_sum",
		"petstore_commit_requests_count",
		`petstore_commit_requests_bucket{le="4"}`,
		"process_resident_memory_bytes",
		"process_cpu_seconds_total",
	} {
		numbers[name] = 1
	}
	h := &history{}
	h.add(processStart, numbers)
	for name := range numbers {
		if _, drawn := h.places[name]; !drawn {
			t.Errorf("the history lacks %s", name)
		}
	}
}

// TestTheHistoryIsReadUnderItsLock: Go ends a process that reads a map while it is written to.
func TestTheHistoryIsReadUnderItsLock(t *testing.T) {
	h := &history{}
	h.mu.Lock()
	read := make(chan []byte, 1)
	go func() { read <- h.json() }()
	select {
	case <-read:
		t.Fatal("the history is read while another goroutine holds its lock")
	case <-time.After(50 * time.Millisecond): // it fails sooner, if it fails
	}
	h.mu.Unlock()
	<-read
}

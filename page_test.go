package main

// The page for people, as far as it can be checked without a browser.

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func TestThePageIsServedWithoutAKeyAndWithoutALimit(t *testing.T) {
	s := openShop(t)
	for path, contentType := range map[string]string{
		"/":         "text/html; charset=utf-8",
		"/page.css": "text/css; charset=utf-8",
		"/page.js":  "text/javascript; charset=utf-8",
	} {
		get := s.call("GET", path, "Authorization:").is(200).has("Content-Type", contentType).has("X-RateLimit-Limit", "")
		s.call("HEAD", path, "Authorization:").is(200).has("Content-Type", contentType).has("Content-Length", fmt.Sprint(len(get.body)))
		unchanged := s.call("GET", path, "Authorization:", "If-None-Match: "+get.header.Get("ETag")).is(304)
		for _, a := range []reply{get, unchanged} {
			a.has("X-Content-Type-Options", "nosniff").has("Referrer-Policy", "no-referrer").
				has("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "+
					"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		}
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
			s.call(method, path, "Authorization:").is(405, CodeMethodNotAllowed).has("Allow", "GET, HEAD")
		}
	}
	s.call("GET", "/index.html", "Authorization:").is(404, CodeNotFound)
}

// What the policy forbids would be silently ignored by a browser.
func TestThePageHasNothingInlineAndNothingOfAnotherHost(t *testing.T) {
	s := openShop(t)
	html := s.call("GET", "/").is(200).body
	for what, pattern := range map[string]string{
		"a style or an event handler in an attribute": `<[^>]*\s(style|on\w+)=`,
		"a style sheet of its own":                    `<style`,
		"a script without src":                        `<script(\s+(type|async|defer)(="[^"]*")?)*>`,
	} {
		if found := regexp.MustCompile(pattern).FindString(html); found != "" {
			t.Errorf("index.html has %s: %s", what, found)
		}
	}
	for _, match := range regexp.MustCompile(`(?:src|href|action)="([^"]*)"`).FindAllStringSubmatch(html, -1) {
		switch target := match[1]; {
		case strings.HasPrefix(target, "data:image/"), strings.HasPrefix(target, "#") && strings.Contains(html, `id="`+target[1:]+`"`):
		case strings.HasPrefix(target, "/"), strings.Contains(target, ":"):
			t.Errorf("%s is not relative: behind a prefix it would be missed", target)
		default:
			s.call("GET", "/"+target).is(200)
		}
	}
	for _, file := range []string{"/page.css", "/page.js"} {
		if found := regexp.MustCompile(`https?://|\burl\(|@import|innerHTML|localStorage`).FindString(s.call("GET", file).body); found != "" {
			t.Errorf("%s has %s", file, found)
		}
	}
}

func TestThePageSaysWhatTheServiceDoes(t *testing.T) {
	html := openShop(t).call("GET", "/").is(200).body
	want := []string{sunset.Format("2 January 2006"), sunset.Format("2006-01-02"), fmt.Sprintf("Up to %d characters", maxName), "petstore key create"}
	for operation := range describedOperations() {
		method, path, _ := strings.Cut(operation, " ")
		want = append(want, fmt.Sprintf("<b>%s</b> <code>/v1%s</code>", method, path))
	}
	for _, status := range []PetStatus{Available, Pending, Sold} {
		want = append(want, fmt.Sprintf("<option>%s</option>", status), fmt.Sprintf("data-status=%q", status))
	}
	for _, text := range want {
		if !strings.Contains(html, text) {
			t.Errorf("the page does not say %s", text)
		}
	}
}

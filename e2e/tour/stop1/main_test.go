package main

import (
	"strings"
	"testing"
)

func TestHandlersThatWriteTheirOwnErrorsBreakTheContract(t *testing.T) {
	var out strings.Builder
	show(&out)
	want := `GET /v1/shops     404, text/plain; charset=utf-8: 404 page not found
PUT /v1/pets      405, text/plain; charset=utf-8: Method Not Allowed
POST /v1/pets {}  400, text/plain; charset=utf-8: {"code":"invalid_body"} {"id":1}
GET /v1/pets/7    no response: the connection was closed
1 pet was stored, although its request was refused
`
	if out.String() != want {
		t.Errorf("it shows\n%s\nwant\n%s", &out, want)
	}
}

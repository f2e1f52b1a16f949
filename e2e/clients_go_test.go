package e2e

// Proven here alone: a client in Go that is generated from the description can do all that there
// is.

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"petstore/e2e/client"
)

// TestGeneratedClientIsCurrent generates the client again, elsewhere: the one that is tested here
// must be of the description as it is now, and its generator must have no warning.
func TestGeneratedClientIsCurrent(t *testing.T) {
	made := filepath.Join(t.TempDir(), "client.gen.go")
	// builds it; what go downloads for that is no warning
	tool, err := exec.Command("go", "tool", "-n", "oapi-codegen").Output()
	noError(t, err)
	out, err := exec.Command(strings.TrimSpace(string(tool)), "-config", "client/oapi.yaml", "-o",
		made, "../web/openapi.json").CombinedOutput()
	if err != nil || len(out) > 0 { // a warning is a failure too
		t.Fatalf("oapi-codegen: %v\n%s", err, out)
	}
	now, err := os.ReadFile(made)
	noError(t, err)
	tested, err := os.ReadFile("client/client.gen.go")
	noError(t, err)
	if !bytes.Equal(now, tested) {
		t.Error("client/client.gen.go is not what web/openapi.json gives; run go generate ./... " +
			"in e2e")
	}
}

// newClient is the generated client as its users make it, except that its
// requests and answers are held against the description on their way.
func newClient(t *testing.T, c *contract, key string) *client.ClientWithResponses {
	t.Helper()
	authorize := func(_ context.Context, req *http.Request) error {
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		return nil
	}
	api, err := client.NewClientWithResponses(c.server.url,
		client.WithHTTPClient(&http.Client{Transport: c}), client.WithRequestEditorFn(authorize))
	noError(t, err)
	return api
}

// must returns the answer of a call of the client.
func must[V any](t *testing.T) func(V, error) V {
	return func(v V, err error) V {
		t.Helper()
		noError(t, err)
		return v
	}
}

// follow sends a request to the target of a Link header instead.
func follow(link string) client.RequestEditorFn {
	return func(_ context.Context, req *http.Request) (err error) {
		target, _, _ := strings.Cut(strings.TrimPrefix(link, "<"), ">")
		req.URL, err = req.URL.Parse(target)
		return err
	}
}

// TestClientTour is a day in the life of a client: all that it touches is
// generated, so the description says enough to write one.
func TestClientTour(t *testing.T) {
	c := newContract(t, start(t))
	api := newClient(t, c, c.server.key)
	ctx := t.Context()
	create, list, get := must[*client.CreatePetResponse](t), must[*client.ListPetsResponse](t),
		must[*client.GetPetResponse](t)

	var sold []client.Pet
	for i := range 7 {
		animal := client.NewPet{Name: fmt.Sprint("animal ", i), CategoryId: int64(i)}
		if i%2 == 0 {
			animal.Status = new(client.Sold)
		}
		made := create(api.CreatePetWithResponse(ctx, nil, animal))
		if made.JSON201 == nil || made.Headers201.Location == nil ||
			*made.Headers201.Location != fmt.Sprint("/v1/pets/", made.JSON201.Id) {
			t.Fatalf("created: %s %s", made.Status(), made.Body)
		}
		if pet := *made.JSON201; pet.Name != animal.Name || pet.CategoryId != animal.CategoryId ||
			pet.Status == nil {
			t.Fatalf("created %+v, asked for %+v", pet, animal)
		} else if *pet.Status == client.Sold {
			sold = append(sold, pet)
		} else if *pet.Status != client.Available {
			t.Fatalf("without a status an animal is %s", *pet.Status)
		}
	}

	var listed []client.Pet
	page := list(api.ListPetsWithResponse(ctx, &client.ListPetsParams{Limit: new(2),
		Status: new(client.Sold)}))
	for pages := 1; ; pages++ {
		if page.JSON200 == nil {
			t.Fatalf("listed: %s %s", page.Status(), page.Body)
		}
		listed = append(listed, *page.JSON200...)
		if page.Headers200.Link == nil {
			if pages != 2 {
				t.Errorf("four animals come on %d pages of two", pages)
			}
			break
		}
		page = list(api.ListPetsWithResponse(ctx, nil, follow(*page.Headers200.Link)))
	}
	if same := func(a, b client.Pet) bool {
		return a.Id == b.Id && a.Name == b.Name &&
			*a.Status == *b.Status
	}; !slices.EqualFunc(listed, sold, same) {
		t.Errorf("listed %+v, want %+v", listed, sold)
	}

	one := get(api.GetPetWithResponse(ctx, sold[1].Id, nil))
	if one.JSON200 == nil || one.JSON200.Name != sold[1].Name ||
		one.Headers200.Sunset != "Thu, 05 Dec 2030 00:00:00 GMT" {
		t.Fatalf("got: %s %s", one.Status(), one.Body)
	}
	again := get(api.GetPetWithResponse(ctx, sold[1].Id,
		&client.GetPetParams{IfNoneMatch: &one.Headers200.ETag}))
	if again.StatusCode() != http.StatusNotModified ||
		again.Headers304.ETag != one.Headers200.ETag {
		t.Errorf("revalidated: %s", again.Status())
	}
}

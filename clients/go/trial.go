// Tries the client against a running API: `go run . URL KEY ENDPOINT`. Prints one line for each thing that holds.
// ../typescript/trial.ts tells the same story; tests/integration/test_other_languages.py has the lines.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"emq.example/trial/emqapi"
)

const (
	tenant = "acme"
	pool   = "sms"
)

type client struct {
	*emqapi.APIClient
	ctx context.Context
}

func connect(url, key string) client {
	configuration := emqapi.NewConfiguration()
	configuration.Servers = emqapi.ServerConfigurations{{URL: url}}
	ctx := context.WithValue(context.Background(), emqapi.ContextAccessToken, key)
	return client{emqapi.NewAPIClient(configuration), ctx}
}

func check(holds bool, what string) {
	if !holds {
		panic(what)
	}
}

// done returns the body of an answer, which must not be a refusal.
func done[T any](body T, _ *http.Response, err error) T {
	var refusal *emqapi.GenericOpenAPIError
	if errors.As(err, &refusal) {
		panic(string(refusal.Body()))
	}
	check(err == nil, fmt.Sprint(err))
	return body
}

// refused returns the form that all refusals have.
func refused[T any](_ T, response *http.Response, err error) emqapi.ProblemDetails {
	var refusal *emqapi.GenericOpenAPIError
	check(errors.As(err, &refusal), fmt.Sprint("it was not refused: ", err))
	problem, ok := refusal.Model().(emqapi.ProblemDetails)
	check(ok && response.Header.Get("Content-Type") == "application/problem+json", "another form")
	check(int(problem.Status) == response.StatusCode, "another status")
	return problem
}

func to[T any](value T) *T { return &value }

func (emq client) tenants() {
	put := func(body emqapi.TenantBody) (*emqapi.TenantShown, *http.Response, error) {
		return emq.TenantsAPI.PutTenant(emq.ctx, tenant).TenantBody(body).Execute()
	}
	body := emqapi.NewTenantBody(50)
	body.SetName("Acme")
	_, first, err := put(*body)
	check(err == nil, fmt.Sprint(err))
	shown, again, err := put(*emqapi.NewTenantBody(60))
	check(err == nil, fmt.Sprint(err))
	const form = "a tenant: %d, then %d with %v a second for %s\n"
	fmt.Printf(form, first.StatusCode, again.StatusCode, shown.Qps, shown.Name)
	unknown := refused(emq.TenantsAPI.GetTenant(emq.ctx, "nobody").Execute())
	fmt.Println("an unknown tenant:", unknown.Status, unknown.Code)
	wrong := refused(put(*emqapi.NewTenantBody(-1)))
	fmt.Println("a wrong value:", wrong.Status, wrong.Code, wrong.GetPointer())
}

func (emq client) endpoints(url string) {
	body := emqapi.NewEndpointBody(url)
	body.EventTypes = []string{"order.*"}
	body.SetQps(40)
	made := done(emq.EndpointsAPI.CreateEndpoint(emq.ctx, tenant).EndpointBody(*body).Execute())
	fmt.Println("an endpoint:", made.GetSecret()[:6], made.GetQps())
	changes := emqapi.NewEndpointChanges()
	changes.SetQpsNil()
	at := emq.EndpointsAPI.ChangeEndpoint(emq.ctx, tenant, made.Id)
	without := done(at.EndpointChanges(*changes).Execute())
	encoded, _ := json.Marshal(without.Qps)
	fmt.Println("its limit taken away:", string(encoded))
}

func (emq client) messages() {
	payload := map[string]any{"order": 17, "amount": 12.5}
	body := emqapi.PublishRequest{Message: emqapi.NewMessage("order.paid", payload)}
	publish := emq.MessagesAPI.Publish(emq.ctx, tenant).PublishRequest(body).IdempotencyKey("order-17")
	one, same := done(publish.Execute()).ReceiptShown, done(publish.Execute()).ReceiptShown
	check(one.Id == same.Id, "two ids")
	fmt.Println("a message, sent twice with one key: one id")
	stored := done(emq.MessagesAPI.GetMessage(emq.ctx, tenant, one.Id).Execute())
	order := stored.Payload.(map[string]any)
	fmt.Printf("its payload: {\"order\":%v,\"amount\":%v}\n", order["order"], order["amount"])
	list := []emqapi.Message{}
	for number := range 6 {
		list = append(list, *emqapi.NewMessage("order.paid", map[string]any{"order": number + 1}))
	}
	several := emqapi.PublishRequest{Messages: emqapi.NewMessages(list)}
	many := done(emq.MessagesAPI.Publish(emq.ctx, tenant).PublishRequest(several).Execute())
	fmt.Println("messages in one request:", len(many.ReceiptsShown.Data))
}

func (emq client) deliveries() {
	count, pages, cursor := 0, 0, ""
	for {
		list := emq.DeliveriesAPI.ListDeliveries(emq.ctx, tenant).CreatedGte(time.Unix(0, 0).UTC())
		page := done(list.Limit(2).Cursor(cursor).Execute())
		count += len(page.Data)
		pages++
		if page.Next.Get() == nil {
			break
		}
		cursor = *page.Next.Get()
	}
	fmt.Printf("deliveries: %d on %d pages\n", count, pages)
	delivered := emq.DeliveriesAPI.ListDeliveries(emq.ctx, tenant).State("delivered")
	for left := 200; len(done(delivered.Execute()).Data) < count; left-- {
		check(left > 0, "not all were delivered")
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Println("all are delivered")
}

func (emq client) pools() {
	body := emqapi.NewPoolBody(pool)
	body.Types = map[string]emqapi.TaskType{"code": *emqapi.NewTaskType()}
	north := emqapi.NewResource()
	north.Limits = []emqapi.Limit{*emqapi.NewLimit("messages", 5, "second")}
	north.Takes = map[string]map[string]float64{"code": {}}
	body.Resources = map[string]emqapi.Resource{"north": *north}
	made := done(emq.PoolsAPI.PutPool(emq.ctx, pool).PoolBody(*body).Execute())
	fmt.Println("a pool: version", made.Version)
	changes := emqapi.ResourceChanges{Price: *emqapi.NewNullableFloat64(to(2.0))}
	change := emq.PoolsAPI.ChangePoolResource(emq.ctx, pool, "north").ResourceChanges(changes)
	old := refused(change.IfMatch(`"7"`).Execute())
	fmt.Println("a change of another version:", old.Status, old.Code)
}

func (emq client) tasks() {
	submit := emq.TasksAPI.SubmitTasks(emq.ctx, pool)
	body := emqapi.NewTaskBody("code", map[string]any{"to": "+49"})
	body.SetId("t1")
	one := done(submit.SubmitTasksRequest(emqapi.SubmitTasksRequest{TaskBody: body}).Execute()).TaskReceipt
	task := done(emq.TasksAPI.GetTask(emq.ctx, pool, one.Id).Type_("code").Execute())
	fmt.Printf("a task: %s, attempts %d\n", task.Id, len(task.Attempts))
	list := []emqapi.TaskBody{*emqapi.NewTaskBody("code", 1), *emqapi.NewTaskBody("none", 1)}
	several := emqapi.SubmitTasksRequest{TaskBodies: emqapi.NewTaskBodies(list)}
	many := done(submit.SubmitTasksRequest(several).Execute()).TaskOutcomes
	problem := many.Data[1].GetProblem()
	fmt.Printf("tasks: %d accepted, %d refused as %s\n", many.Accepted, many.Refused, problem.Code)
}

func main() {
	url, key, endpoint := os.Args[1], os.Args[2], os.Args[3]
	stranger, emq := connect(url, "emqk_wrong"), connect(url, key)
	problem := refused(stranger.TenantsAPI.ListTenants(stranger.ctx).Execute())
	fmt.Println("a wrong key:", problem.Status, problem.Code)
	emq.tenants()
	emq.endpoints(endpoint)
	emq.messages()
	emq.deliveries()
	emq.pools()
	emq.tasks()
	gone, err := emq.TenantsAPI.DeleteTenant(emq.ctx, tenant).Execute()
	check(err == nil, fmt.Sprint(err))
	fmt.Println("the tenant deleted:", gone.StatusCode)
}

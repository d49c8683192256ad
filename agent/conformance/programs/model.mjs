// A model server on loopback that answers by a script, so that agent programs can be watched at their work with no key
// and no network. It speaks as much as they need of three protocols, all streaming: Anthropic's Messages, OpenAI's
// Responses and Gemini's streamGenerateContent.
//
//	node model.mjs FILE
//
// It listens on a port of its own and writes the number into FILE.
//
// What it answers stands in the newest message of the person:
//
//	script:talk   a text, a word at a time, for six seconds
//	script:think  nothing for six seconds, then a word
//	script:run    a call of the program's own shell tool, which sleeps for six seconds; after its result, a word
//	              MODEL_SECONDS is another number of seconds for these
//	script:mcp    calls of MCP tools, one after the other: those in the file of MODEL_CALLS, a JSON array of {tool, args}; then a word
//
// Anything else, and any request without tools, is one of the program's own (a title, a summary): it gets a word at once.
// Each request is a line on standard output: its path, what was found in it, and the names of the tools offered.
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

const seconds = Number(process.env.MODEL_SECONDS ?? 6); // that each answer takes
const wordEvery = 250; // ms
const words = seconds * 4;
const thinkFor = seconds * 1000; // ms
const command = `touch script-ran; sleep ${seconds}`;

const calls = process.env.MODEL_CALLS ? JSON.parse(readFileSync(process.env.MODEL_CALLS, 'utf8')) : [];

// script returns an answer as pieces of text, each after a pause, or as a call of a tool: the shell's, or one that is offered. results
// is how many results of tools there are so far.
function script(step, results, offered) {
	if (step === 'mcp' && results < calls.length) {
		const { tool, args } = calls[results];
		const name = offered.find((n) => n.startsWith('mcp_') && (n.endsWith(`_${tool}`) || n.endsWith(`.${tool}`)));
		return name ? { name, args } : { pieces: [[0, `no tool ${tool} is offered`]] };
	}
	switch (step) {
		case 'talk':
			return { pieces: Array.from({ length: words }, (_, i) => [wordEvery, `word${i}${i % 6 === 5 ? '\n' : ' '}`]) };
		case 'think':
			return { pieces: [[thinkFor, 'thought.']] };
		case 'run':
			return { call: command };
	}
	return { pieces: [[0, 'finished.']] };
}

// stepOf finds what the newest message asks for.
function stepOf(text) {
	return [...text.matchAll(/script:(\w+)/g)].at(-1)?.[1] ?? 'end';
}

// shellOf returns the name of the program's shell tool.
const shellOf = (body) => (body.tools ?? []).find((t) => t.name.toLowerCase() === 'bash')?.name ?? 'Bash';

// Anthropic Messages.
const messages = {
	step: (body) => {
		const content = body.messages.findLast((m) => m.role === 'user')?.content ?? ''; // what follows is the program's own
		if (calls.length > 0) return stepOf(JSON.stringify(body.messages));
		if (typeof content === 'string') return stepOf(content);
		return content.some((b) => b.type === 'tool_result') ? 'end' : stepOf(JSON.stringify(content));
	},
	results: (body) => body.messages.flatMap((m) => (Array.isArray(m.content) ? m.content : [])).filter((b) => b.type === 'tool_result').length,
	tools: (body) => (body.tools ?? []).map((t) => t.name),
	async *stream(body, answer) {
		const event = (e) => `event: ${e.type}\ndata: ${JSON.stringify(e)}\n\n`;
		const usage = { input_tokens: 1, output_tokens: 1 };
		const message = { id: 'msg_1', type: 'message', role: 'assistant', model: body.model, content: [], stop_reason: null, stop_sequence: null, usage };
		yield event({ type: 'message_start', message });
		const calling = answer.call || answer.name;
		const block = calling ? { type: 'tool_use', id: `toolu_${Date.now()}`, name: answer.name ?? shellOf(body), input: {} } : { type: 'text', text: '' };
		yield event({ type: 'content_block_start', index: 0, content_block: block });
		const delta = (d) => event({ type: 'content_block_delta', index: 0, delta: d });
		if (calling) {
			yield delta({ type: 'input_json_delta', partial_json: JSON.stringify(answer.args ?? { command: answer.call, description: 'Run the script' }) });
		}
		for (const [pause, text] of answer.pieces ?? []) {
			await sleep(pause);
			yield delta({ type: 'text_delta', text });
		}
		yield event({ type: 'content_block_stop', index: 0 });
		yield event({ type: 'message_delta', delta: { stop_reason: calling ? 'tool_use' : 'end_turn', stop_sequence: null }, usage });
		yield event({ type: 'message_stop' });
	},
};

// OpenAI Responses.
const responses = {
	step: (body) => {
		const newest = body.input.findLast((i) => i.type === 'function_call_output' || (i.role === 'user' && JSON.stringify(i.content).includes('script:')));
		if (calls.length > 0) return stepOf(JSON.stringify(body.input));
		return newest?.type === 'function_call_output' ? 'end' : stepOf(JSON.stringify(newest?.content ?? ''));
	},
	results: (body) => body.input.filter((i) => i.type === 'function_call_output').length,
	tools: (body) => (body.tools ?? []).flatMap((t) => t.tools?.map((u) => `${t.name}.${u.name}`) ?? [t.name ?? t.type]), // NAMESPACE.NAME where there is one
	async *stream(body, answer) {
		const event = (e) => `event: ${e.type}\ndata: ${JSON.stringify(e)}\n\n`;
		const id = `resp_${Date.now()}`;
		yield event({ type: 'response.created', response: { id } });
		let item;
		if (answer.name) {
			const [name, namespace] = answer.name.split('.').reverse();
			item = { type: 'function_call', id: `fc_${id}`, call_id: `call_${id}`, name, namespace, arguments: JSON.stringify(answer.args) };
		} else if (answer.call) {
			const args = { cmd: answer.call, sandbox_permissions: 'require_escalated', justification: 'Run the script?' };
			item = { type: 'function_call', id: `fc_${id}`, call_id: `call_${id}`, name: 'exec_command', arguments: JSON.stringify(args) };
		} else {
			item = { type: 'message', id: `msg_${id}`, role: 'assistant', content: [] };
			yield event({ type: 'response.output_item.added', output_index: 0, item });
			let whole = '';
			for (const [pause, text] of answer.pieces) {
				await sleep(pause);
				whole += text;
				yield event({ type: 'response.output_text.delta', item_id: item.id, output_index: 0, content_index: 0, delta: text });
			}
			item.content.push({ type: 'output_text', text: whole, annotations: [] });
		}
		yield event({ type: 'response.output_item.done', output_index: 0, item });
		const usage = { input_tokens: 1, input_tokens_details: { cached_tokens: 0 }, output_tokens: 1, output_tokens_details: { reasoning_tokens: 0 }, total_tokens: 2 };
		yield event({ type: 'response.completed', response: { id, usage } });
	},
};

// Gemini's streamGenerateContent, as server-sent events.
const gemini = {
	step: (body) => {
		const parts = body.contents.at(-1)?.parts ?? [];
		if (calls.length > 0) return stepOf(JSON.stringify(body.contents));
		return parts.some((p) => p.functionResponse) ? 'end' : stepOf(JSON.stringify(parts));
	},
	results: (body) => body.contents.flatMap((c) => c.parts ?? []).filter((p) => p.functionResponse).length,
	tools: (body) => (body.tools ?? []).flatMap((t) => (t.functionDeclarations ?? []).map((f) => f.name)),
	async *stream(body, answer) {
		const event = (parts, finishReason) =>
			`data: ${JSON.stringify({ candidates: [{ index: 0, content: { role: 'model', parts }, finishReason }], usageMetadata: { promptTokenCount: 1, candidatesTokenCount: 1, totalTokenCount: 2 } })}\n\n`;
		if (answer.call || answer.name) {
			const args = answer.args ?? { command: answer.call, description: 'Run the script' };
			yield event([{ functionCall: { name: answer.name ?? 'run_shell_command', args } }], 'STOP');
			return;
		}
		for (const [i, [pause, text]] of answer.pieces.entries()) {
			await sleep(pause);
			yield event([{ text }], i === answer.pieces.length - 1 ? 'STOP' : undefined);
		}
	},
};

function protocolOf(path) {
	if (path.endsWith('/v1/messages')) return messages;
	if (path.endsWith('/responses')) return responses;
	if (path.endsWith(':streamGenerateContent')) return gemini;
	return undefined;
}

const server = createServer(async (request, response) => {
	const chunks = [];
	for await (const chunk of request) chunks.push(chunk);
	const path = new URL(request.url, 'http://localhost').pathname;
	const protocol = protocolOf(path);
	if (request.method !== 'POST' || !protocol) {
		console.log(request.method, request.url, 'not answered');
		response.writeHead(404, { 'content-type': 'application/json' }).end('{"error":{"message":"not in the script"}}');
		return;
	}
	const body = JSON.parse(Buffer.concat(chunks).toString());
	const tools = protocol.tools(body);
	if (process.env.MODEL_BODIES) writeFileSync(process.env.MODEL_BODIES, JSON.stringify(body)); // the last one
	const scripted = tools.length > 0 || process.env.MODEL_PLAIN; // a program without tools
	const step = scripted ? protocol.step(body) : 'end';
	const answer = script(step, tools.length > 0 ? protocol.results(body) : 0, tools);
	console.log(request.url, body.stream, step, tools.join(' '));
	response.writeHead(200, { 'content-type': 'text/event-stream' });
	for await (const event of protocol.stream(body, answer)) response.write(event);
	response.end();
});
server.listen(0, '127.0.0.1', () => {
	const file = process.argv[2];
	writeFileSync(`${file}.new`, String(server.address().port));
	renameSync(`${file}.new`, file); // whoever finds it finds all of it
});

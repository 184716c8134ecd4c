# en: Lesson 36: who runs in the next step? An order in which waiting counts.
# en: Fill in the four functions, then run: kvsched lesson check 36
# en: A request is a dict: id, phase ("decode" or "prefill"), tokens (still to be computed of its
# en: prompt), cached (share of its prompt in the cache, 0 to 1), priority (higher is more
# en: important), arrival_s.
# zh: 第 36 课：下一步谁运行？等待也算数的顺序。
# zh: 补全四个函数，然后运行：kvsched lesson check 36
# zh: 请求是一个 dict：id、phase（"decode" 或 "prefill"）、tokens（提示中还要计算的 token 数）、
# zh: cached（提示在缓存中的比例，0 到 1）、priority（越大越重要）、arrival_s（到达时间，秒）。


def score(request, now_s):
    # en: Task 1. Return what speaks for a request now: 2 if it decodes, plus its cached share, plus
    # en: its priority, plus 0.1 for each second that it has waited (never less than 0 seconds).
    # zh: 任务 1：返回请求现在的分数：正在解码加 2，加上缓存比例，加上优先级，
    # zh: 每等待一秒再加 0.1（等待时间不小于 0 秒）。
    # solution begins
    decoding = 2 if request["phase"] == "decode" else 0
    # en: Without this term a stream of better requests would keep one waiting for ever.
    # zh: 没有这一项，源源不断的更好的请求会让某个请求永远等下去。
    waited = max(now_s - request["arrival_s"], 0)
    return decoding + request["cached"] + request["priority"] + 0.1 * waited
    # solution ends


def order(requests, now_s):
    # en: Task 2. Return the ids, the highest score first; ties go by arrival, then by id.
    # zh: 任务 2：按分数从高到低返回 id；相同时按到达时间，再按 id。
    # solution begins
    ranked = sorted(requests, key=lambda r: (-score(r, now_s), r["arrival_s"], r["id"]))
    return [request["id"] for request in ranked]
    # solution ends


def step(requests, now_s, budget):
    # en: Task 3. Give out budget tokens in that order: one to a request that decodes, to another
    # en: its tokens as far as the budget goes. Return a list of (id, tokens); nobody gets 0.
    # zh: 任务 3：按这个顺序分配 budget 个 token：正在解码的给一个；
    # zh: 其他的按剩余预算给，最多给它的 tokens 个。返回 (id, token 数) 的列表；不出现 0。
    # solution begins
    given = []
    by_id = {request["id"]: request for request in requests}
    for each in order(requests, now_s):
        request = by_id[each]
        wanted = 1 if request["phase"] == "decode" else request["tokens"]
        tokens = min(wanted, budget)
        if tokens > 0:
            given.append((each, tokens))
            budget -= tokens
    return given
    # solution ends


def fairness(waits_s):
    # en: Task 4. Return max(0, 1 - (longest - shortest wait) / max(mean wait, 1)); None for nobody.
    # zh: 任务 4：返回 max(0, 1 - (最长等待 - 最短等待) / max(平均等待, 1))；没有人时为 None。
    # solution begins
    if not waits_s:
        return None
    mean = sum(waits_s) / len(waits_s)
    # en: Waits below a second are all short: the 1 keeps their differences small.
    # zh: 不到一秒的等待都很短：用 1 使它们的差别显得小。
    return max(0, 1 - (max(waits_s) - min(waits_s)) / max(mean, 1))
    # solution ends

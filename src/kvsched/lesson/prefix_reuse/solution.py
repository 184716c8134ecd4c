# en: Lesson 34: what a prompt need not compute again, and how the rest is computed.
# en: Fill in the four functions, then run: kvsched lesson check 34
# zh: 第 34 课：提示中哪些不用再算，剩下的怎么算。
# zh: 补全四个函数，然后运行：kvsched lesson check 34


def block_keys(tokens, block_size):
    # en: Task 1. Return a key for each full block of tokens (a list of numbers), in order. A key
    # en: names everything up to the block's end: (the key of the block before or None, its tokens
    # en: as a tuple). The tokens after the last full block have none.
    # zh: 任务 1：按顺序为 tokens（数字列表）的每个完整的块返回一个键。键要包含到块尾为止的一切：
    # zh: （前一块的键或 None，本块 token 的元组）。最后一个完整块之后的 token 没有键。
    # solution begins
    keys = []
    before = None
    for start in range(0, len(tokens) - block_size + 1, block_size):
        # en: The same tokens after another beginning have other keys and values: the chain tells.
        # zh: 相同的 token 若开头不同，key 和 value 也不同：靠这条链区分。
        before = (before, tuple(tokens[start : start + block_size]))
        keys.append(before)
    return keys
    # solution ends


def cached_tokens(tokens, block_size, cached):
    # en: Task 2. cached holds the keys of blocks in the cache. Return how many tokens of the prompt
    # en: need not be computed: blocks from the beginning on, up to the first that is not there. At
    # en: least one token is always computed: the last one's result gives the first new token.
    # zh: 任务 2：cached 是缓存中块的键。返回提示中不用计算的 token 数：
    # zh: 从开头起，到第一个不在缓存中的块为止。至少要计算一个 token：
    # zh: 最后一个 token 的结果给出第一个新 token。
    # solution begins
    hit = 0
    for key in block_keys(tokens, block_size):
        if key not in cached or hit + block_size >= len(tokens):
            break
        hit += block_size
    return hit
    # solution ends


def reuse_report(prompts, block_size):
    # en: Task 3. Prompts come one after the other to a cache that is empty at first, keeps every
    # en: full block and never loses one. Return a dict of the sums: prompt_tokens, hit_tokens,
    # en: computed_tokens, and hit_ratio, hits over prompt tokens (None without any).
    # zh: 任务 3：提示依次到来；缓存开始为空，保存每个完整的块，从不丢失。
    # zh: 返回总和的 dict：prompt_tokens、hit_tokens、computed_tokens，
    # zh: 以及 hit_ratio，即命中除以提示 token 数（没有 token 时为 None）。
    # solution begins
    cached = []
    total = hits = 0
    for tokens in prompts:
        total += len(tokens)
        hits += cached_tokens(tokens, block_size, cached)
        # en: Stored after the look-up: a prompt does not hit itself.
        # zh: 查找之后再存入：提示不会命中自己。
        cached.extend(block_keys(tokens, block_size))
    return {
        "prompt_tokens": total,
        "hit_tokens": hits,
        "computed_tokens": total - hits,
        "hit_ratio": hits / total if total else None,
    }
    # solution ends


def chunk_plan(hit, prompt, budget, decodes):
    # en: Task 4. hit of a prompt's tokens are cached; the suffix is computed in steps. A step has
    # en: room for budget tokens, and decodes other requests take one of them each first. Return the
    # en: chunks, a list of (start, end) in order. Raise ValueError where a step has no room left.
    # zh: 任务 4：提示的前 hit 个 token 已缓存，其余分步计算。每一步最多 budget 个 token，
    # zh: 其中 decodes 个其他请求先各取一个。按顺序返回各段 (start, end) 的列表。
    # zh: 一步中没有剩余空间时抛出 ValueError。
    # solution begins
    room = budget - decodes
    if room < 1:
        raise ValueError("no room for prefill in a step")
    # en: Decoding goes on at every step: a long prompt delays it by a chunk, not by itself.
    # zh: 每一步解码都在继续：长提示只让它晚一段，而不是一整个提示。
    return [(start, min(start + room, prompt)) for start in range(hit, prompt, room)]
    # solution ends

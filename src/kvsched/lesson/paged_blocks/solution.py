# en: Lesson 22: a KV cache in pages.
# en: Fill in the four functions, then run: kvsched lesson check 22
# zh: 第 22 课：分页的 KV Cache。
# zh: 补全四个函数，然后运行：kvsched lesson check 22


def blocks_needed(tokens, block_size):
    # en: Task 1. Return how many blocks of block_size tokens hold so many tokens.
    # en: Raise ValueError for a block_size below 1 or tokens below 0.
    # zh: 任务 1：返回容纳 tokens 个 token 需要多少个大小为 block_size 的块。
    # zh: block_size 小于 1 或 tokens 小于 0 时抛出 ValueError。
    # solution begins
    if block_size < 1 or tokens < 0:
        raise ValueError("block_size must be at least 1, tokens at least 0")
    # en: Whole numbers all the way: a float would round for long contexts.
    # zh: 全程用整数：浮点数在很长的上下文中会舍入。
    return (tokens + block_size - 1) // block_size
    # solution ends


def allocate(lengths, block_size, free):
    # en: Task 2. lengths are tokens of requests in order of arrival, free is a list of free block
    # en: ids. Return a block table a request: the ids it gets, taken from the front of free. A
    # en: request that does not fit gets None and takes nothing; the next may still fit.
    # en: free is changed: what was taken is gone.
    # zh: 任务 2：lengths 是按到达顺序的各请求 token 数，free 是空闲块 id 的列表。
    # zh: 为每个请求返回一张块表：从 free 前端取得的块 id。
    # zh: 放不下的请求得到 None，什么也不拿；下一个也许还放得下。
    # zh: free 会改变：拿走的不再在里面。
    # solution begins
    tables = []
    for tokens in lengths:
        need = blocks_needed(tokens, block_size)
        if need > len(free):
            # en: All or nothing: half a prompt in the cache is of no use to a request that waits.
            # zh: 要么全给，要么不给：只放一半提示对等待的请求没有用。
            tables.append(None)
            continue
        tables.append(free[:need])
        del free[:need]
    return tables
    # solution ends


def append_token(table, length, block_size, free):
    # en: Task 3. A request of length tokens generates one more. Add the next free block to table
    # en: only when its last block is full. Return the new length; None, with nothing changed, when
    # en: a block is needed and none is free.
    # zh: 任务 3：一个有 length 个 token 的请求又生成一个。只有最后一块满了，
    # zh: 才把下一个空闲块加入 table。返回新的长度；需要块却没有空闲时返回 None，不改变任何东西。
    # solution begins
    if length == len(table) * block_size:
        if not free:
            return None
        table.append(free.pop(0))
    return length + 1
    # solution ends


def allocation_report(lengths, block_size):
    # en: Task 4. Return a dict of what requests of these lengths take:
    # en: logical_tokens, the tokens there are; allocated_slots, the places in their blocks;
    # en: unused_tail, the places that hold nothing; utilisation, the first over the second
    # en: (None where there is no block: what was not measured is not 0).
    # zh: 任务 4：返回一个 dict，说明这些长度的请求占用多少：
    # zh: logical_tokens，实际的 token 数；allocated_slots，分到的块里的位置数；
    # zh: unused_tail，没有存放东西的位置数；utilisation，前者除以后者
    # zh: （没有块时为 None：没有测量的不是 0）。
    # solution begins
    logical = sum(lengths)
    slots = sum(blocks_needed(tokens, block_size) for tokens in lengths) * block_size
    return {
        "logical_tokens": logical,
        "allocated_slots": slots,
        # en: Less than a block a request: that is what paging leaves over.
        # zh: 每个请求不到一块：分页只浪费这么多。
        "unused_tail": slots - logical,
        "utilisation": logical / slots if slots else None,
    }
    # solution ends

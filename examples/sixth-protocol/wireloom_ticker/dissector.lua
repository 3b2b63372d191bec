do
  local ticker = Proto("wireloom.ticker", "Ticker")
  local line = ProtoField.string("wireloom.ticker.line", "Line")
  local body = ProtoField.bytes("wireloom.ticker.body", "Body")
  ticker.fields = { line, body }

  -- By verb: whether a body follows.
  local verbs = { EVENT = true, ASK = true, DONE = true, FAIL = true, PING = false, PONG = false, BYE = false }

  local function first_line(buffer, at)
    return buffer:raw(at, math.min(buffer:len() - at, 4097)):match("^([^\n]*)\n")
  end

  local function measure(buffer, at)
    local text = first_line(buffer, at)
    if text == nil then return buffer:len() - at > 4096 and 0 or nil end
    local has_body = verbs[text:match("^%u+")]
    if has_body == nil then return 0 end
    if not has_body then return #text + 1 end
    local size = tonumber(text:match(" (%d+)$"))
    return size and #text + 1 + size + 1 or 0
  end

  wireloom.stream(ticker, 5050, measure, function(buffer, tree)
    local text = first_line(buffer, 0)
    tree:add(line, buffer(0, #text), text)
    if buffer:len() > #text + 2 then tree:add(body, buffer(#text + 1, buffer:len() - #text - 2)) end
    return text
  end)
end
